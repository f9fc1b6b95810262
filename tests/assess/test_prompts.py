"""The free-running level on a tiny model: plan, generate, judge, pack, report, verify."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from kvassay.assess.levels.drawn import drawn_levels
from kvassay.assess.levels.prompts import PromptLevel
from kvassay.assess.levels.tensors import TensorLevel
from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.free_running_rule import parse_ids
from kvassay.core.records import Role
from kvassay.errors import ContractError
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from kvassay.report import chart_specs
from kvassay.report.again import with_report_checks
from tests.pack.tampering import edit, edit_rows, rehash

TOML = """
schema = "kvassay.contract/1"
name = "tiny"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 40
scored_tokens = 8
[candidates]
order = ["int8-token-head", "int8-tensor"]
[inference]
pilot_documents = 2
bootstrap_replicates = 400
[controls]
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.001
[free_running]
prompts = 20
prompt_tokens = 40
generated_tokens = 10
pilot_prompts = 2
lengths = [4]
sampling = "seeded"
[free_running.diverged]
max_rate = 0.5
[free_running.repetition]
margin = 0.3
slices = ["generated=4"]
"""


@pytest.fixture(scope="module")
def toml(texts) -> str:
    return TOML.format(texts=texts)


@pytest.fixture(scope="module")
def pack(tiny_folder, toml, tmp_path_factory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, out)
    return result, read_pack(out)


def test_r53_a_run_leaves_outputs_that_verify_and_judge_again_to_the_byte(pack) -> None:
    result, content = pack
    verification = with_report_checks(result.out, verify_pack(result.out, result.manifest.root))
    assert verification.passed, verification.failed
    assert {"rejudge", "prompts", "report", "chart: charts/agreement-survival.json"} <= {
        check.name for check in verification.checks
    }
    rows = content.tables.generations.to_pylist()
    assert {row["arm"] for row in rows} == {arm.name for arm in content.arms}
    assert len(rows) == 4 * 20


def test_the_reference_again_writes_what_the_reference_wrote_and_coarse_codes_do_not(pack) -> None:
    _, content = pack
    rows = content.tables.generations.to_pylist()
    by_role = {arm.role: [row for row in rows if row["arm"] == arm.name] for arm in content.arms}
    again, canary = by_role[Role.REFERENCE_AGAIN], by_role[Role.CANARY]
    assert all(row["reference_ids"] == row["candidate_ids"] and row["logit_drift"] == 0 for row in again)
    assert any(row["reference_ids"] != row["candidate_ids"] for row in canary)
    assert {row["reading_queries"] for row in again} == {0}
    assert all(row["stored_reads"] > 40 for row in canary)


def test_pilot_and_verdict_share_no_prompt_and_no_calibrating_document_is_judged(pack, toml, tiny_folder) -> None:
    from kvassay.engines.transformers.loading import load_model

    _, content = pack
    levels = drawn_levels(parse_contract(toml), load_model(str(tiny_folder)).tokenizer)
    documents, captured, prompts = levels
    assert isinstance(captured, TensorLevel)
    assert isinstance(prompts, PromptLevel)
    judged = {unit.id for unit in prompts.units}
    assert judged == {prompt["id"] for prompt in content.subject["free_running"]["prompts"]}
    assert not judged & {unit.id for unit in prompts.pilot_units}
    assert not judged & {unit.id for unit in documents.pilot_units}


def test_plan_names_each_clause_with_its_cost(tiny_folder, toml) -> None:
    plan = plan_assessment(str(tiny_folder), parse_contract(toml))
    mine = [entry for entry in plan["clauses"] if entry["clause"].startswith("free_running.")]
    assert {entry["clause"] for entry in mine} == {"free_running.diverged", "free_running.repetition"}
    assert {entry["n_unit"] for entry in mine} == {"prompts"}
    assert {(entry["slice"], entry["n_planned"]) for entry in mine} == {("all", 20), ("generated=4", 20)}
    assert all(0 <= entry["power"] <= 1 for entry in mine)
    assert plan["pilot"]["prompts"] == 2
    assert plan["cost"]["seconds_by_level"]["prompts"] > 0
    # 20 documents of 48 tokens, one of them captured in two passes that share its prompt, and 20 prompts with all but
    # the last generated token.
    assert plan["cost"]["reference_tokens"] == 20 * 48 + 48 + 8 + 20 * 49


def test_r51_r52_verdict_and_report_name_the_level_of_every_figure(pack) -> None:
    result, content = pack
    page = (result.out / "report.html").read_text()
    section = page.partition('id="free-running"')[2].partition("</section>")[0]
    assert "Free-running level" in section
    assert "none stands for the other" in section
    assert "nats" not in section
    assert "teacher-forced" in page
    assert "Free-running generation, where an early difference" not in page, "it was measured"
    for verdict in content.verdicts.formats:
        levels = {clause.clause.partition(".")[0]: clause.n_unit for clause in verdict.clauses}
        assert levels == {"fidelity": "documents", "free_running": "prompts"}


def test_the_survival_chart_shows_the_shares_of_the_rows(pack) -> None:
    _, content = pack
    spec = chart_specs(content)["agreement-survival"]
    outputs = {}
    for row in content.tables.generations.to_pylist():
        outputs.setdefault(row["arm"], []).append((parse_ids(row["reference_ids"]), parse_ids(row["candidate_ids"])))
    points = spec["data"]["values"]
    assert {point["arm"] for point in points} == {"int8-token-head", "int8-tensor", "int2-g32"}
    for point in points:
        equal = sum(one[: point["tokens"]] == other[: point["tokens"]] for one, other in outputs[point["arm"]])
        assert (point["equal"], point["prompts"]) == (equal, 20)
        assert point["low"] <= point["share"] == equal / 20 <= point["high"]
    floor = next(layer for layer in spec["layer"] if layer.get("data", {}).get("name") == "reference again")
    assert {point["share"] for point in floor["data"]["values"]} == {1.0}


def changed(column: str, change):
    def edited(rows: pa.Table) -> pa.Table:
        values = [change(row) for row in rows.to_pylist()]
        index = rows.schema.get_field_index(column)
        return rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))

    return edited


def of_canary(row):
    return row["reference_ids"] if row["arm"] == "int2-g32" else row["candidate_ids"]


TAMPERINGS = {
    "candidate made equal": (changed("candidate_ids", of_canary), "rejudge"),
    "prompts of another text": (changed("prompt_ids", lambda row: "5 " * 39 + "5"), "prompts"),
    "another end token": (changed("end_ids", lambda row: "9"), "prompts"),
    "a prompt under another name": (changed("prompt", lambda row: "x" + row["prompt"]), "prompts"),
    "one arm less": (lambda rows: rows.filter(pa.compute.not_equal(rows.column("arm"), "int8-tensor")), "rejudge"),
    "ids that are none": (changed("reference_ids", lambda row: row["reference_ids"] + " x"), "rejudge"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_r108_edited_outputs_are_found_without_the_root(pack, tmp_path, tampering) -> None:
    change, check = TAMPERINGS[tampering]
    folder = shutil.copytree(pack[0].out, tmp_path / "pack")
    edit_rows(folder, "generations", change)
    rehash(folder)
    failed = {one.name for one in verify_pack(folder).failed}
    assert check in failed or f"checkable: {check}" in failed


def test_a_subject_without_its_prompts_is_found(pack, tmp_path) -> None:
    folder = shutil.copytree(pack[0].out, tmp_path / "pack")
    edit(folder, "subject.json", lambda subject: subject["free_running"]["prompts"].pop())
    rehash(folder)
    assert {one.name for one in verify_pack(folder).failed} == {"prompts"}


class Counting:
    """Progress that counts the steps of each stage."""

    def __init__(self) -> None:
        self.planned: dict[str, int] = {}
        self.steps: dict[str, int] = {}

    def stage(self, name: str, steps: int) -> None:
        self.planned[name], self.steps[name] = steps, 0

    def step(self) -> None:
        self.steps[list(self.steps)[-1]] += 1

    def note(self, text: str) -> None: ...


def test_a_contract_of_prompts_alone_runs_and_its_bytes_are_of_the_length_reached(tiny_folder, texts, tmp_path) -> None:
    toml = TOML.format(texts=texts)
    toml = toml.replace("[fidelity.kl_mean]\nmax = 0.001\n", "").replace(', "int8-tensor"', "")
    progress = Counting()
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out", progress)
    assert result.tokens == 50
    assert progress.steps == progress.planned == {"pilot": 2, "prompts": 20}
    verification = verify_pack(result.out, result.manifest.root)
    assert verification.passed, verification.failed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("generated_tokens = 10", "generated_tokens = 600"), "long enough|context"),
        (('"int8-tensor"', '"kivi-4"'), r"kivi-4 keeps 128 tokens .* 9 queries of 10 tokens generated from 40"),
    ],
)
def test_what_cannot_show_anything_is_refused_before_it_runs(change, message, tiny_folder, toml, tmp_path) -> None:
    from kvassay.errors import WorkloadError

    toml = toml.replace(*change).replace("[fidelity.kl_mean]\nmax = 0.001\n", "")
    with pytest.raises((ContractError, WorkloadError), match=message):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
