"""A sequential run on a tiny model: it stops where the contract's rule says, and judging again agrees."""

from __future__ import annotations

import pytest

from kvassay.assess.run import run_assessment
from kvassay.core.contract import parse_contract
from kvassay.core.records import Outcome
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack

CONTRACT = """
schema = "kvassay.contract/1"
name = "sequential"
[candidates]
order = ["int8-token-head"]
[inference]
design = "sequential"
look_every = 5
pilot_items = 2
[controls]
canary = "int2-g32"
require_canary_fail = false
[task.recall]
margin = 0.3
ref_floor = 0.0
items = 60
context_lines = 3
"""


@pytest.fixture(scope="module")
def sequential_pack(tiny_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    return run_assessment(str(tiny_folder), parse_contract(CONTRACT), CONTRACT, out), read_pack(out)


def test_it_stops_at_a_look_long_before_the_last_item(sequential_pack) -> None:
    result, content = sequential_pack
    rows = content.tables.items.to_pylist()
    contexts = {row["context"] for row in rows}
    assert len(contexts) % 5 == 0
    assert 10 <= len(contexts) <= 30
    assert contexts == {f"recall/7/{2 + index}" for index in range(len(contexts))}
    (verdict,) = (one for one in result.verdicts.formats if one.arm == "int8-token-head")
    (clause,) = (one for one in verdict.clauses if one.slice == "all")
    assert clause.method == "betting e-process"
    # The bound lies inside the margin; a random model that gets nothing right has nothing to lose, so it is not MET.
    assert clause.lower is not None
    assert clause.lower > -0.3
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the task cannot show a larger loss" in clause.reason
    assert len(contexts) - 5 < clause.details["decided_at"] <= len(contexts)


def test_judging_again_agrees_and_the_pack_verifies(sequential_pack) -> None:
    result, _ = sequential_pack
    verification = verify_pack(result.out, result.manifest.root)
    assert verification.passed, verification.failed
    assert any(check.name == "rejudge" and check.passed for check in verification.checks)


def test_the_plan_tells_the_most_items_and_when_half_of_the_runs_decide(sequential_pack) -> None:
    result, _ = sequential_pack
    (entry,) = (one for one in result.plan["clauses"] if one["arm"] == "int8-token-head")
    assert entry["n_planned"] == 60
    assert "a look every 5 contexts, half of such runs decide within" in entry["assumption"]


TWO_TASKS = (
    CONTRACT.replace('name = "sequential"', 'name = "two tasks"')
    + """
[task.second]
kind = "recall"
margin = 0.5
ref_floor = 0.0
items = 60
context_lines = 2
"""
)


def test_each_task_stops_by_itself(tiny_folder, tmp_path) -> None:
    """The first task that is settled does not end the second: each has its own items, looks and stop."""
    result = run_assessment(str(tiny_folder), parse_contract(TWO_TASKS), TWO_TASKS, tmp_path / "pack")
    rows = read_pack(result.out).tables.items.to_pylist()
    items = {task: len({row["context"] for row in rows if row["task"] == task}) for task in ("recall", "second")}
    assert 0 < items["second"] < items["recall"] < 60
    (verdict,) = (one for one in result.verdicts.formats if one.arm == "int8-token-head")
    decided = {clause.clause: clause.lower for clause in verdict.clauses if clause.slice == "all"}
    assert decided["task.recall"] is not None
    assert decided["task.second"] is not None
    assert decided["task.recall"] > -0.3
    assert decided["task.second"] > -0.5
    assert verify_pack(result.out, result.manifest.root).passed
