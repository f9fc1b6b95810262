"""Rendering a pack's report and charts again, to see whether they say what the pack's data say.

`verify_pack` cannot do it, since a pack knows no report; `kvassay verify` adds these checks to its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import kvassay
from kvassay.errors import PackError
from kvassay.pack import layout
from kvassay.pack.checks import Check, Verification, printable_checks
from kvassay.pack.layout import is_pack_file
from kvassay.pack.plain_files import list_files, read_plain
from kvassay.pack.reader import PackContent, read_pack
from kvassay.pack.strict_json import MAX_JSON_NBYTES, parse_json
from kvassay.report.chart_svg import moving_parts
from kvassay.report.charts import chart_specs
from kvassay.report.html import render_report

_DRAWING = re.compile(rb'<svg class="chart .*?</svg>', re.DOTALL)
"""A chart as drawn. Its text is measured with the machine's fonts, so another machine may draw it otherwise."""


def with_report_checks(path: Path, verification: Verification) -> Verification:
    """The verification of the pack at `path` with checks of its report and charts: `report`, `chart: NAME`."""
    try:
        pack = read_pack(path)
    except PackError:  # which is a failed check already
        return verification
    try:
        checks = tuple(_report_checks(path, pack))
    except Exception as error:  # a stranger's pack: whatever its content causes is a failed check and no crash
        reason = f"the report cannot be rendered again: {type(error).__name__}: {error}"[:500]
        checks = (Check("report", False, reason),)
    return verification._replace(checks=(*verification.checks, *printable_checks(checks)))


def _report_checks(path: Path, pack: PackContent) -> Iterator[Check]:
    names = [name for name in list_files(path).names if is_pack_file(name)]
    charts = [name for name in names if name.startswith("charts/")]
    with_report = layout.REPORT in names
    if not charts and not with_report:
        return
    assert pack.manifest is not None, "read_pack reads it"
    written_by = pack.manifest.kvassay_version
    if written_by != kvassay.__version__:
        sentence = f"not compared: kvassay {written_by} wrote it, and this is {kvassay.__version__}"
        yield Check("report", True, f"{layout.REPORT} and charts: {sentence}")
        return
    content = pack._replace(manifest=None)  # as it was when the run wrote its report
    specs = {layout.chart_file(name): spec for name, spec in chart_specs(content).items()}
    for name in charts:
        found = parse_json(read_plain(path, name, MAX_JSON_NBYTES), name)
        same = name in specs and found == json.loads(json.dumps(specs[name]))
        yield Check(f"chart: {name}", same, f"{name} {'shows' if same else 'does not show'} the figures of the pack")
    if with_report:
        yield _report_check(read_plain(path, layout.REPORT, MAX_JSON_NBYTES), render_report(content).encode())


def _report_check(found: bytes, again: bytes) -> Check:
    if found == again:
        return Check("report", True, f"{layout.REPORT} renders again from the pack, byte for byte")
    drawings, theirs = len(_DRAWING.findall(again)), _DRAWING.findall(found)
    # What cannot be compared must at least be a drawing: nothing in it may run or load anything.
    if faults := [fault for svg in theirs for fault in moving_parts(svg.decode("utf-8", "replace"))]:
        return Check(
            "report", False, f"{layout.REPORT} holds a drawing with {faults[0]!r}, which no drawing of ours has"
        )
    if len(theirs) == drawings and _DRAWING.sub(b"", found) == _DRAWING.sub(b"", again):
        sentence = f"renders again from the pack, but for its {drawings} drawings, which this machine draws otherwise"
        return Check("report", True, f"{layout.REPORT} {sentence}")
    return Check(
        "report", False, f"{layout.REPORT} does not say what the pack's data say; render it with kvassay report"
    )
