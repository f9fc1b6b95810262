"""Exports say what the pack says: no inconclusive result passes, and no text of a stranger runs anywhere."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvassay.cli.app import run
from kvassay.core.records import ControlResult, Outcome, Role
from kvassay.errors import PackError
from kvassay.pack.reader import PackContent, read_whole_pack
from kvassay.pack.tables import TABLE_COLUMNS
from kvassay.report.exports.deciding import candidates, deciding_clauses
from kvassay.report.exports.github import github_annotations
from kvassay.report.exports.junit import junit_xml
from kvassay.report.exports.model_card import model_card
from kvassay.report.exports.row_tables import EXPORTED_TABLES, exported_table, to_csv, to_parquet

HOSTILE = "<script>alert(1)</script>|`x`[a](javascript:1)\n::error::\u202egnp\x07]]>&\"'"


def cases(content: PackContent) -> dict[tuple[str, str], tuple[str, str | None]]:
    """Suite and name -> kind of the result and its type."""
    found = {}
    for suite in ElementTree.fromstring(junit_xml(content)):
        for case in suite.iter("testcase"):
            told = [child for child in case if child.tag in ("failure", "error", "skipped")]
            assert len(told) <= 1
            kind = (told[0].tag, told[0].get("type")) if told else ("passed", None)
            found[suite.get("name") or "", case.get("name") or ""] = kind
    return found


def test_junit_has_a_case_for_each_clause_that_decides_and_nothing_inconclusive_passes(content: PackContent) -> None:
    found = cases(content)
    expected = {
        Outcome.MET: ("passed", None),
        Outcome.BREACHED: ("failure", "breached"),
        Outcome.INCONCLUSIVE: ("error", "inconclusive"),
        Outcome.NOT_MEASURED: ("error", "not_measured"),
        Outcome.INVALID_EVIDENCE: ("error", "invalid_evidence"),
    }
    seen = set()
    for verdict in content.verdicts.formats:
        if verdict.role is not Role.CANDIDATE:
            assert not [key for key in found if key[0] == verdict.arm], "a canary that must fail is no test that fails"
            continue
        assert found[verdict.arm, "verdict"] == expected[verdict.outcome]
        for clause in deciding_clauses(verdict):
            name = clause.clause if clause.slice == "all" else f"{clause.clause} [{clause.slice}]"
            assert found[verdict.arm, name] == expected[clause.outcome]
            seen.add(clause.outcome)
    assert {Outcome.MET, Outcome.INCONCLUSIVE} <= seen
    assert {verdict.outcome for verdict in candidates(content)} >= {Outcome.NOT_MEASURED}
    assert not [key for key, (kind, _) in found.items() if kind == "skipped"]
    top = ElementTree.fromstring(junit_xml(content))
    kinds = [kind for kind, _ in found.values()]
    counted = [int(top.get(name) or 0) for name in ("tests", "failures", "errors", "skipped")]
    assert counted == [len(found), kinds.count("failure"), kinds.count("error"), 0]


def _with(content: PackContent, **changes: Any) -> PackContent:
    return content._replace(verdicts=content.verdicts.model_copy(update=changes))


def test_a_control_that_failed_or_was_not_run_is_an_error(content: PackContent) -> None:
    controls = tuple(
        ControlResult(name=name, passed=passed, reason="a reason")
        for name, passed in (("canary", False), ("aa", None), ("drift", True))
    )
    found = cases(_with(content, controls=controls))
    assert found["controls", "canary"] == ("error", "invalid_evidence")
    assert found["controls", "aa"] == ("error", "not_measured")
    assert found["controls", "drift"] == ("passed", None)


def hostile(content: PackContent) -> PackContent:
    """Every free text of the verdicts and the subject is an attack."""
    formats = tuple(
        verdict.model_copy(
            update={
                "arm": HOSTILE + str(index),
                "reason": HOSTILE,
                "clauses": tuple(
                    clause.model_copy(update={"clause": HOSTILE, "slice": HOSTILE, "reason": HOSTILE, "unit": HOSTILE})
                    for clause in verdict.clauses
                ),
            }
        )
        for index, verdict in enumerate(content.verdicts.formats)
    )
    subject = {**content.subject, "model": {"name": HOSTILE}, "corpus": {"name": HOSTILE, "documents": []}}
    contract = content.contract.model_copy(update={"name": HOSTILE})
    return _with(content, formats=formats, reason=HOSTILE)._replace(subject=subject, contract=contract)


def test_hostile_texts_stay_texts_in_every_form(content: PackContent) -> None:
    attacked = hostile(content)
    xml = junit_xml(attacked)
    assert {element.tag for element in ElementTree.fromstring(xml).iter()} <= {
        "testsuites", "testsuite", "testcase", "properties", "property", "failure", "error",
    }  # fmt: skip
    lines = github_annotations(attacked).splitlines()
    assert all(re.match(r"::(error|warning|notice) title=[^:,]*::", line) for line in lines)
    assert len(lines) == len(github_annotations(content).splitlines())
    card = model_card(attacked)
    assert "<" not in card
    assert not re.search(r"(?<!\\)\[|(?<!\\)\]\(", card)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in card.splitlines() if line.startswith("|")}
    assert widths == {5, 8}, "no name makes a column"
    for text in (xml, "\n".join(lines), card):
        assert not set("\u202e\x07") & set(text)
        assert "U+202E" in text.replace("\\", "")


def test_github_annotations_have_a_level_for_each_outcome(content: PackContent) -> None:
    text = github_annotations(content)
    for verdict in candidates(content):
        level = {Outcome.MET: "notice", Outcome.BREACHED: "error", Outcome.INVALID_EVIDENCE: "error"}
        title = verdict.arm.replace(",", "%2C").replace(":", "%3A")
        assert f"::{level.get(verdict.outcome, 'warning')} title={title}%3A verdict::" in text
    assert not re.search("%(?!25|0A|0D|2C|3A)", text)
    assert github_annotations(_with(content, reason="95% of\r\nit")).splitlines()[-1].count("95%25 of") == 1


def test_r9_a_model_card_claims_what_was_measured_and_nothing_else(content: PackContent, bare: PackContent) -> None:
    card = model_card(content)
    for verdict in candidates(content):
        assert verdict.outcome.value.replace("_", " ").upper() in card
    assert content.manifest is not None
    assert content.manifest.root in card
    assert content.contract.sha256 in card
    assert "What this does not say" in card
    assert "- Model: sample\\-135m\n- Revision: r1\n" in card
    assert f"- Weights SHA-256: {'12' * 32}\n" in card
    assert "not measured" in card, "a candidate that was not run has no figure"
    numbers = re.findall(r"\d+\.\d+", model_card(bare))
    assert "not recorded" in model_card(bare)
    assert numbers, "what a bare pack judged is still told"
    for word in ("lossless", "near-lossless", "state of the art", "preserved"):
        assert word not in card.lower()


@pytest.mark.parametrize("table", EXPORTED_TABLES)
def test_csv_and_parquet_hold_every_row(table: str, content: PackContent) -> None:
    rows = exported_table(content, table)
    back = pq.read_table(io.BytesIO(to_parquet(rows)))
    assert back.equals(rows)
    lines = list(csv.reader(io.StringIO(to_csv(rows).decode())))
    assert lines[0] == rows.column_names
    assert len(lines) - 1 == rows.num_rows
    for name in rows.column_names:
        if rows.schema.field(name).type == pa.float64():
            place = rows.column_names.index(name)
            found = [float(line[place]) if line[place] else None for line in lines[1:]]
            assert found == rows.column(name).to_pylist(), "the very digits, and nothing for null"


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "|cmd", "%0A", "＝1", "'=1", "'", "\u00a0"]
HARMLESS = ["1", "x=1", "", "a'b", "ok"]


def test_r9_csv_runs_no_formula_and_loses_no_text() -> None:
    texts = [*FORMULAS, *HARMLESS, None]
    data = to_csv(pa.table({"text": pa.array(texts, pa.string()), "value": [-1.5] * len(texts)}))
    found = [line[0] for line in csv.reader(io.StringIO(data.decode(), newline=""))][1:]
    for text, cell in zip(texts, found, strict=True):
        assert cell[:1] not in tuple("=+-@\t\r\n|%＝") or not cell
        assert cell.removeprefix("'") == (text or "")
    assert [cell for cell in found if cell.startswith("'")] == ["'" + text for text in FORMULAS[:-1]]
    assert data.decode().splitlines()[-1] == ",-1.5", "null is nothing, and a number is a number"
    assert '"",-1.5' in data.decode().splitlines(), "an empty text is there"


@pytest.fixture
def pack(content: PackContent, tmp_path: Path) -> Path:
    return shutil.copytree(content.path, tmp_path / "pack")


@pytest.mark.parametrize("form", ["junit", "github", "model-card", "csv", "parquet"])
def test_the_command_writes_each_form_once(form: str, pack: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert run(["export", str(pack), "--to", form, "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "form": form, "nbytes": out.stat().st_size}
    before = out.read_bytes()
    assert run(["export", str(pack), "--to", form, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert out.read_bytes() == before
    code = run(["export", str(pack), "--to", form])
    text = capsys.readouterr()
    assert (code, text.out.encode()) == ((2, b"") if form == "parquet" else (0, before))
    assert run(["export", str(pack), "--to", form, "--table", "../x", "--out", str(tmp_path / "y")]) == 2
    assert set(TABLE_COLUMNS) < set(EXPORTED_TABLES)


def test_a_pack_that_is_not_as_it_was_written_is_not_exported(pack: Path) -> None:
    (pack / "plan.json").write_text("{}")
    with pytest.raises(PackError, match="is not what its run wrote"):
        read_whole_pack(pack)
    assert run(["export", str(pack), "--to", "junit"]) == 2


@pytest.mark.parametrize("form", ["junit", "model-card", "csv", "github"])
def test_stdout_gets_the_bytes_of_the_file_in_any_encoding(form: str, pack: Path, tmp_path: Path, monkeypatch) -> None:
    assert run(["export", str(pack), f"--to={form}", "--out", str(tmp_path / "file")]) == 0
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace"))
    assert run(["export", str(pack), f"--to={form}"]) == 0
    assert raw.getvalue() == (tmp_path / "file").read_bytes()
