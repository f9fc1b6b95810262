"""Written answers on a tiny model: plan, write, judge, pack, report, verify."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pytest

from kvassay.assess.levels.answers import AnswerLevel
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.assess.run import run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.free_running_rule import parse_ids
from kvassay.core.records import Role
from kvassay.errors import ContractError
from kvassay.pack.compare import compare_packs
from kvassay.pack.post_hoc import judge_post_hoc
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from kvassay.report.again import with_report_checks
from tests.engines.model_folders import byte_tokenizer
from tests.pack.tampering import edit, edit_rows, rehash

TOML = """
schema = "kvassay.contract/1"
name = "tiny"
[candidates]
order = ["int8-tensor"]
[inference]
pilot_items = 2
[controls]
canary = "int2-g32"
[free_running]
batch_prompts = 3
[task.json]
answer = "written"
answer_tokens = 8
margin = 0.2
parse_margin = 0.3
ref_floor = 0.0
items = 6
context_tokens = [384]
depths = ["early", "late"]
slices = ["depth=late"]
[task.counting]
answer_tokens = 8
margin = 0.2
ref_floor = 0.0
items = 4
lines = [2, 3]
"""
ARMS = ("int8-tensor", "int2-g32", "f32 again 1")


@pytest.fixture(scope="module")
def pack(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    result = run_assessment(str(tiny_folder), parse_contract(TOML), TOML, out)
    return result, read_pack(out)


def test_r53_a_run_leaves_answers_that_verify_and_judge_again_to_the_byte(pack) -> None:
    result, content = pack
    verification = with_report_checks(result.out, verify_pack(result.out, result.manifest.root))
    assert verification.passed, verification.failed
    assert {"rejudge", "answers", "report", "ledger-tokens: int8-tensor"} <= {c.name for c in verification.checks}
    rows = content.tables.answers.to_pylist()
    assert {row["arm"] for row in rows} == set(ARMS)
    assert len(rows) == 3 * (6 + 4)
    assert not content.tables.items.num_rows


def test_the_reference_again_writes_what_the_reference_wrote_and_coarse_codes_do_not(pack) -> None:
    _, content = pack
    rows = content.tables.answers.to_pylist()
    by_role = {arm.role: [row for row in rows if row["arm"] == arm.name] for arm in content.arms}
    again, canary = by_role[Role.REFERENCE_AGAIN], by_role[Role.CANARY]
    assert all(row["reference_ids"] == row["candidate_ids"] and row["logit_drift"] == 0 for row in again)
    assert any(row["reference_text"] != row["candidate_text"] for row in canary)
    # The question read codes of the context, so that already the first token of an answer can differ.
    assert all(row["logit_drift"] > 0 for row in canary)
    assert any(row["reference_ids"].split()[0] != row["candidate_ids"].split()[0] for row in canary)
    assert all(row["stored_reads"] >= row["context_tokens"] for row in canary if row["stored_reads"] is not None)


def test_a_text_is_that_of_its_ids_and_ends_where_its_rule_says(pack) -> None:
    _, content = pack
    tokenizer = byte_tokenizer()
    for row in content.tables.answers.to_pylist():
        ids = parse_ids(row["candidate_ids"])
        ends = parse_ids(row["end_ids"])
        assert row["candidate_text"] == tokenizer.decode([token for token in ids if token not in ends])
        assert len(ids) <= 8
        assert len(parse_ids(row["prompt_ids"])) > row["context_tokens"]


def test_plan_and_cost_name_both_clauses_in_the_whole_and_in_the_slice(pack) -> None:
    result, _ = pack
    mine = [entry for entry in result.plan["clauses"] if entry["arm"] == "int8-tensor"]
    assert [(entry["clause"], entry["slice"], entry["n_planned"]) for entry in mine] == [
        ("task.counting", "all", 4),
        ("task.json", "all", 6),
        ("task.json.parse", "all", 6),
        ("task.json", "depth=late", 3),
        ("task.json.parse", "depth=late", 3),
    ]
    assert all(0 <= entry["power"] <= 1 for entry in mine)
    assert result.plan["pilot"]["answers"] == 4
    assert result.plan["cost"]["seconds_by_level"]["answers"] > 0
    assert result.plan["cost"]["candidate_tokens"] == 3 * result.plan["cost"]["reference_tokens"]


def test_r51_r52_verdict_and_report_say_that_answers_were_written(pack) -> None:
    result, content = pack
    for verdict in content.verdicts.formats:
        found = [clause for clause in verdict.clauses if clause.clause in ("task.json", "task.json.parse")]
        assert {clause.details["measure"] for clause in found} == {"written"}
        assert all(0 <= clause.details["equal_answers"] <= 1 for clause in found)
        assert all(clause.details["reference_parse_rate"] == 0 for clause in found), "a random model writes no JSON"
    page = (result.out / "report.html").read_text()
    assert "reference parse rate" in page
    assert "the model writes its answers by itself" in page
    assert "reference right lines" in page
    assert " written answers." in page


def test_items_run_together_only_where_context_and_question_are_as_long(pack) -> None:
    (level,) = drawn_levels(parse_contract(TOML), byte_tokenizer())
    assert isinstance(level, AnswerLevel)
    found = level.batches(level.units)
    assert sorted(item.id for batch in found for item in batch) == sorted(item.id for item in level.units)
    for batch in found:
        assert len(batch) <= 3
        assert len({(one.task, len(one.context_ids), len(one.question_ids)) for one in batch}) == 1


def test_a_prompt_and_answer_beyond_the_model_are_refused_before_the_run(tiny_folder, tmp_path) -> None:
    toml = TOML.replace("[2, 3]", "[2, 90]").replace("answer_tokens = 8\nmargin = 0.2\nref", "margin = 0.2\nref")
    with pytest.raises(ContractError, match=r"task\.counting: .* a context of 512 tokens; write fewer lines"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_two_packs_of_the_same_items_are_compared_item_by_item(pack) -> None:
    _, content = pack
    clauses = {c.clause: c for c in compare_packs(content, content).formats[0].clauses if c.slice == "all"}
    for name, n in (("task.json", 6), ("task.json.parse", 6), ("task.counting", 4)):
        assert clauses[name].paired is not None
        assert (clauses[name].paired.estimate, clauses[name].paired.n) == (0, n)


def test_answers_are_judged_post_hoc_under_other_margins_and_never_as_another_measure(pack) -> None:
    _, content = pack
    other = parse_contract(TOML.replace("parse_margin = 0.3", "parse_margin = 0.4"))
    assert [change.path for change in judge_post_hoc(content, other).changed] == ["task.json.parse_margin"]
    forced = TOML.replace('answer = "written"\nanswer_tokens = 8\n', "").replace("parse_margin = 0.3\n", "")
    with pytest.raises(ContractError, match=r"task\.json\.answer"):
        judge_post_hoc(content, parse_contract(forced))


def _of_candidate(column: str, value):
    def edited(rows: pa.Table) -> pa.Table:
        found = rows.to_pylist()
        row = next(row for row in found if row["arm"] == "int8-tensor" and row["task"] == "json")
        row[column] = value(row) if callable(value) else value
        return pa.Table.from_pylist(found, schema=rows.schema)

    return edited


@pytest.mark.parametrize(
    ("column", "value", "failed"),
    [
        ("candidate_text", '{"number": 1}', "rejudge"),
        ("prompt_ids", lambda row: row["prompt_ids"].replace(" ", " 7 ", 1), "answers"),
        ("end_ids", "7", "answers"),
        ("context", "json/7/3", "rejudge"),
    ],
)
def test_an_edited_row_is_found_even_when_every_hash_was_made_to_fit(pack, tmp_path, column, value, failed) -> None:
    result, _ = pack
    out = shutil.copytree(result.out, tmp_path / "pack")
    edit_rows(out, "answers", _of_candidate(column, value))
    rehash(out)
    assert failed in {check.name for check in verify_pack(out).failed}


def test_a_subject_that_lists_other_items_is_found(pack, tmp_path) -> None:
    result, _ = pack
    out = shutil.copytree(result.out, tmp_path / "pack")

    def without_one(subject):
        del subject["written"]["items"][0]

    edit(out, "subject.json", without_one)
    rehash(out)
    (failed,) = [check for check in verify_pack(out).failed if check.name == "answers"]
    assert "does not list" in failed.sentence
    assert json.loads((out / "subject.json").read_text())["written"]["tasks"]["json"]["kind"] == "json"
