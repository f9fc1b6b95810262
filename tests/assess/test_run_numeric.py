"""A contract with numeric clauses on a tiny model, alone and beside scored text; and on quantized weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.records import Outcome, Role
from kvassay.pack.reader import PackContent, read_pack
from kvassay.pack.verify import verify_pack
from tests.pack.tampering import edit, edit_rows, rehash

CONTRACT = """
schema = "kvassay.contract/1"
name = "numeric"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 40
scored_tokens = 16
[candidates]
order = ["int8-token-head", "kivi-4,recent=8"]
[inference]
pilot_documents = 2
bootstrap_replicates = 500
[controls]
canary = "int2-g32"
[numeric]
documents = 20
queries = 12
[numeric.output_relative]
max = 0.1
slices = ["substituted=keys", "substituted=values"]
[numeric.score_max_abs]
max = 100.0
[numeric.reconstruction_relative]
max = 0.3
"""


@pytest.fixture(scope="module")
def alone(tiny_folder, texts, tmp_path_factory) -> Path:
    toml = CONTRACT.format(texts=texts)
    out = tmp_path_factory.mktemp("numeric") / "pack"
    run_assessment(str(tiny_folder), parse_contract(toml), toml, out)
    return out


@pytest.fixture(scope="module")
def content(alone) -> PackContent:
    return read_pack(alone)


def clause(content: PackContent, arm: str, name: str = "output_relative", part: str = "all"):
    verdict = next(verdict for verdict in content.verdicts.formats if verdict.arm == arm)
    return next(c for c in verdict.clauses if c.clause == f"numeric.{name}" and c.slice == part)


def test_r42_r43_numeric_clauses_alone_give_verdicts_with_controls(content) -> None:
    assert content.tables.tokens.num_rows == 0
    outcomes = {verdict.role: verdict.outcome for verdict in content.verdicts.formats}
    assert outcomes[Role.CANARY] is Outcome.BREACHED
    assert outcomes[Role.REFERENCE_AGAIN] is Outcome.MET
    met = clause(content, "int8-token-head")
    assert met.outcome is Outcome.MET, met.reason
    assert met.n == 20
    assert 0 < met.estimate < 0.1
    assert clause(content, "f32 again 1").estimate == 0.0
    keys, values = "numeric.substituted=keys", "numeric.substituted=values"
    controls = {control.name: control.passed for control in content.verdicts.controls}
    sighted = {"canary": True, "aa": True, f"canary.{values}": True, f"aa.{values}": True, f"aa.{keys}": True}
    assert controls == {**sighted, f"canary.{keys}": False}
    engaged = next(v for v in content.verdicts.formats if v.arm == "int8-token-head").controls
    assert {control.name: control.passed for control in engaged} == dict.fromkeys(
        ("engaged", "drift", f"engaged.{keys}", f"engaged.{values}"), True
    )


def test_a_side_in_which_the_canary_does_no_damage_is_not_met(content) -> None:
    """Attention of the tiny model is nearly even, so keys of two bits move its output by less than the bound."""
    assert clause(content, "int2-g32", part="substituted=keys").estimate < 0.1
    assert clause(content, "int8-token-head", part="substituted=keys").outcome is Outcome.INCONCLUSIVE
    assert clause(content, "int8-token-head", part="substituted=values").outcome is Outcome.MET


def test_r94_rows_are_every_layer_head_and_side_of_every_document(content) -> None:
    rows = content.tables.tensors
    assert rows.num_rows == 4 * 20 * 2 * 2 * 3
    listed = {document["id"] for document in content.subject["numeric"]["documents"]}
    assert set(rows.column("document").to_pylist()) == listed
    assert {document["id"] for document in content.subject["corpus"]["documents"]} == listed
    assert not listed & set(content.plan["pilot"]["document_ids"])
    reads = {row["stored_reads"] for row in rows.to_pylist() if row["arm"] == "int8-token-head"}
    assert reads == {sum(range(56 - 12, 56))}


def test_the_estimate_follows_from_the_rows(content) -> None:
    rows = [
        r for r in content.tables.tensors.to_pylist() if r["arm"] == "kivi-4,recent=8" and r["substituted"] == "both"
    ]
    worst = {}
    for row in rows:
        worst[row["document"]] = max(worst.get(row["document"], 0.0), row["output_relative"])
    found = clause(content, "kivi-4,recent=8")
    assert found.estimate == pytest.approx(np.mean(list(worst.values())), rel=1e-12)
    assert found.details["worst_cell"] == max(worst.values())


def test_r81_r82_the_plan_expects_each_side_that_decides(content) -> None:
    entries = {(e["arm"], e["clause"], e["slice"]): e for e in content.plan["clauses"]}
    whole = entries["int8-token-head", "numeric.output_relative", "all"]
    assert whole["n_planned"] == 20
    assert 0 < entries["int8-token-head", "numeric.output_relative", "substituted=keys"]["expected"] < 0.1
    assert whole["expected"] == pytest.approx(clause(content, "int8-token-head").estimate, rel=0.5)


def test_judging_again_without_torch_gives_the_same_bytes(alone) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from kvassay.pack.verify import verify_pack\n"
        f"found = verify_pack(Path({str(alone)!r}))\n"
        "print([check.name for check in found.checks if not check.passed])\n"
        "print([check.sentence for check in found.checks if check.name in ('rejudge', 'captured')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    failed, sentences = done.stdout.splitlines()
    assert failed == "[]"
    assert "byte for byte" in sentences
    assert "every layer and head of the 20 captured documents" in sentences


def failing(folder: Path) -> set[str]:
    return {check.name for check in verify_pack(folder).checks if not check.passed}


def without(column: str, value):
    return lambda table: table.filter(np.array([found != value for found in table.column(column).to_pylist()]))


@pytest.mark.parametrize(("column", "value"), [("layer", 1), ("head", 1), ("document", None)])
def test_a_layer_head_or_document_taken_out_of_every_arm_is_found(alone, content, tmp_path, column, value) -> None:
    """The judge alone cannot know that a model has more layers than any row."""
    folder = shutil.copytree(alone, tmp_path / "pack")
    value = content.subject["numeric"]["documents"][0]["id"] if value is None else value
    edit_rows(folder, "tensors", without(column, value), content.contract.sha256)
    rehash(folder)
    assert "captured" in failing(folder)


def test_a_lowered_figure_of_the_worst_cell_is_found_by_judging_again(alone, content, tmp_path) -> None:
    folder = shutil.copytree(alone, tmp_path / "pack")

    def lower(table):
        values = table.column("output_relative").to_pylist()
        values[values.index(max(values))] = 0.01
        index = table.column_names.index("output_relative")
        return table.set_column(index, table.schema.field(index), [values])

    edit_rows(folder, "tensors", lower, content.contract.sha256)
    rehash(folder)
    assert "rejudge" in failing(folder)


def test_fewer_documents_in_the_subject_than_planned_are_found(alone, tmp_path) -> None:
    folder = shutil.copytree(alone, tmp_path / "pack")
    edit(folder, "subject.json", lambda subject: subject["numeric"]["documents"].pop())
    rehash(folder)
    assert failing(folder) == {"captured"}


def test_r83_r93_the_report_leads_with_the_worst_cell(alone, content) -> None:
    page = (alone / "report.html").read_text()
    both = [
        row
        for row in content.tables.tensors.to_pylist()
        if row["substituted"] == "both" and row["arm"] in content.contract.candidates.order
    ]
    worst = max(both, key=lambda row: row["output_relative"])
    section = " ".join(page[page.index('<section id="numeric"') :].split())
    lead = section[: section.index("Captured keys")]
    assert f"<code>{worst['arm']}</code>, layer {worst['layer']}, KV head {worst['head']}" in lead
    assert repr(worst["output_relative"]) in lead
    assert repr(worst["reconstruction_relative"]) in lead
    assert "An array error never replaces the output error" in section
    assert "keys alone move" in section or "values alone move" in section


def test_beside_scored_text_the_same_documents_are_captured(tiny_folder, texts, tmp_path) -> None:
    lengths = ("prompt_tokens = 40\nscored_tokens = 16", "prompt_tokens = 48\nscored_tokens = 24")
    toml = CONTRACT.format(texts=texts).replace(*lengths) + "[fidelity.kl_mean]\nmax = 0.001\n"
    out = tmp_path / "pack"
    run_assessment(str(tiny_folder), parse_contract(toml), toml, out)
    found = read_pack(out)
    scored = {document["id"] for document in found.subject["corpus"]["documents"]}
    captured = {document["id"] for document in found.subject["numeric"]["documents"]}
    assert scored == captured
    assert not captured & set(found.plan["pilot"]["document_ids"])
    assert {c.clause for v in found.verdicts.formats for c in v.clauses} >= {
        "fidelity.kl_mean",
        "numeric.output_relative",
    }
    # Each level has its own canary: the tiny model's KL is too small to breach, which does not bear on this level.
    assert clause(found, "int2-g32").outcome is Outcome.BREACHED
    assert clause(found, "int8-token-head").outcome is Outcome.MET
    assert not failing(out)


def test_r12_quantized_weights_move_no_format_and_no_ledger(tiny_folder, alone, content, texts, tmp_path) -> None:
    pytest.importorskip("hqq")
    toml = CONTRACT.format(texts=texts).replace("[text]", '[subject]\nweights = "hqq-4"\n[text]')
    contract = parse_contract(toml)
    out = tmp_path / "pack"
    run_assessment(str(tiny_folder), contract, toml, out)
    found = read_pack(out)
    assert contract.sha256 != content.contract.sha256
    assert [(arm.name, arm.format_digest) for arm in found.arms] == [
        (arm.name, arm.format_digest) for arm in content.arms
    ]
    assert json.loads((out / "ledgers.json").read_text()) == json.loads((alone / "ledgers.json").read_text())
    model = found.subject["model"]
    assert model["weights"] == "hqq-4"
    assert model["quantized_weights"]["package"].startswith("hqq ")
    assert model["quantized_weights"]["linear_layers"] == 2 * 7
    assert model["weights_sha256"] == content.subject["model"]["weights_sha256"]
    assert content.subject["model"]["weights"] == "stored"
    assert content.subject["model"]["quantized_weights"] is None
    # Another model: other keys, other errors. Its verdicts are its own.
    assert clause(found, "int8-token-head").estimate != clause(content, "int8-token-head").estimate
    assert "The weights ran as hqq-4" in " ".join((out / "report.html").read_text().split())
    assert not failing(out)


def test_a_dry_run_plans_the_numeric_level(tiny_folder, texts) -> None:
    contract = parse_contract(CONTRACT.format(texts=texts))
    plan = plan_assessment(str(tiny_folder), contract)
    assert {entry["clause"] for entry in plan["clauses"]} == {
        "numeric.output_relative",
        "numeric.score_max_abs",
        "numeric.reconstruction_relative",
    }
    assert plan["cost"]["reference_tokens"] == 20 * (56 + 16)
    assert plan["pilot"]["documents"] == 2
