"""JUnit XML: a suite for each candidate, a test case for each clause that decides.

JUnit knows passed, failed, error and skipped. BREACHED is a failure: the bound was tested and not kept. INCONCLUSIVE,
NOT MEASURED and INVALID EVIDENCE are errors, whose `type` names them: the test could not give its answer. They are
never `skipped`, since a build with skipped tests is green, and an inconclusive result is no pass.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from xml.etree import ElementTree

from kvassay.core.records import Outcome
from kvassay.pack.reader import PackContent
from kvassay.report.exports.deciding import Finding, findings
from kvassay.report.visible_text import visible

_FIGURES = ("unit", "estimate", "lower", "upper", "limit", "n", "n_unit", "method")


def junit_xml(content: PackContent) -> str:
    found = list(findings(content))
    name = visible(content.contract.name)
    top = ElementTree.Element("testsuites", {"name": f"kvassay {name}", **_counts(found)})
    for group, cases in groupby(found, key=lambda finding: finding.group):
        listed = list(cases)
        suite = ElementTree.SubElement(top, "testsuite", {"name": visible(group), **_counts(listed)})
        if content.manifest is not None:
            suite.set("timestamp", content.manifest.created_utc.removesuffix("Z"))
            _properties(suite, {"root": content.manifest.root, "contract_sha256": content.contract.sha256})
        for case in listed:
            _add_case(suite, name, case)
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def _add_case(suite: ElementTree.Element, contract: str, case: Finding) -> None:
    where = {"classname": f"{contract}.{visible(case.group)}", "name": visible(case.name)}
    element = ElementTree.SubElement(suite, "testcase", where)
    if case.clause is not None:
        figures = {name: getattr(case.clause, name) for name in _FIGURES}
        _properties(element, {name: str(value) for name, value in figures.items() if value is not None})
    if case.outcome is Outcome.MET:
        return
    kind = "failure" if case.outcome is Outcome.BREACHED else "error"
    told = ElementTree.SubElement(element, kind, {"type": case.outcome.value, "message": visible(case.reason)})
    told.text = f"{case.outcome.value.replace('_', ' ').upper()}: {visible(case.reason)}"


def _counts(cases: list[Finding]) -> dict[str, str]:
    outcomes = Counter(case.outcome for case in cases)
    failures = outcomes[Outcome.BREACHED]
    errors = len(cases) - failures - outcomes[Outcome.MET]
    return {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": visible(value)})
