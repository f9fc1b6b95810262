"""Tasks of every kind: which rows count, which slices decide, and what a missed floor allows (R44 to R49)."""

from __future__ import annotations

import pytest

from kvassay.core.contract import Contract
from kvassay.core.records import Outcome, Role
from kvassay.core.tasks.kinds import TEACHER_FORCED_KINDS
from kvassay.core.tasks.settings import TaskSettings

from .runs import CANARY, ArmRun, clause_of, contract, control_of, item, judged, with_items

NAME = "int8-token-head"
ITEMS = 90


def text_of(kind: str, task: str = "probe", extra: str = "") -> str:
    lengths = "context_tokens = [512, 1024]\n" if kind != "recall" else ""
    return f'[task.{task}]\nkind = "{kind}"\nmargin = 0.1\nitems = {ITEMS}\n{lengths}{extra}'


def settings_of(of: Contract, task: str = "probe") -> TaskSettings:
    return of.task[task].settings


def runs_of(of: Contract, task: str = "probe", losses: int = 0, reference_wrong: int = 8) -> list[ArmRun]:
    """Candidate, canary and reference again, with items of one task."""
    settings = settings_of(of, task)
    arms = (
        (ArmRun(NAME), losses),
        (ArmRun(CANARY, Role.CANARY), 70),
        (ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), 0),
    )
    return [with_items(run, lost, 0, ITEMS, reference_wrong, task, settings) for run, lost in arms]


def joined(*several: list[ArmRun]) -> list[ArmRun]:
    """One run an arm with the items of several tasks."""
    first, *others = several
    for runs in others:
        for run, more in zip(first, runs, strict=True):
            for column, values in more.items.items():
                run.items[column] += values
    return first


FIDELITY = """
[fidelity.kl_mean]
max = 0.01
[[waivers]]
clause = "fidelity.kl_mean"
reason = "only tasks here"
granted = 2026-01-01
"""


def probe(kind: str, extra: str = "") -> Contract:
    """A contract with one task; needles need something beside them."""
    return contract(text_of(kind, extra=extra) + (FIDELITY if kind in ("needle", "passkey") else ""))


@pytest.mark.parametrize("kind", sorted(TEACHER_FORCED_KINDS))
def test_r44_a_task_of_any_kind_is_met_by_a_format_that_loses_nothing(kind) -> None:
    of = probe(kind)
    clause = clause_of(judged(of, *runs_of(of)), NAME, "task.probe")
    assert clause.outcome is Outcome.MET
    assert clause.details["kind"] == kind
    assert clause.details["measure"] == "teacher-forced"
    assert "(teacher-forced)" in clause.reason
    assert clause_of(judged(of, *runs_of(of, losses=60)), NAME, "task.probe").outcome is Outcome.BREACHED


def another_draw(run: ArmRun) -> None:
    run.items["context"][3] = "probe/8/11"


def of_another_task(run: ArmRun) -> None:
    run.items["context"][3] = run.items["context"][3].replace("probe", "recall")


def of_the_pilot(run: ArmRun) -> None:
    run.items["context"][3] = "probe/7/7"


def beyond_the_plan(run: ArmRun) -> None:
    run.items["context"][3] = f"probe/7/{8 + ITEMS}"


def copied(run: ArmRun) -> None:
    for column, values in run.items.items():
        if column not in ("context", "slice"):
            values[3] = values[4]


def doubled(run: ArmRun) -> None:
    for values in run.items.values():
        values[3] = values[4]


def wrong_slice(run: ArmRun) -> None:
    cells = run.items["slice"]
    cells[3] = next(cell for cell in cells if cell != cells[3])


def no_slice(run: ArmRun) -> None:
    run.items["slice"][3] = "all"


def wrong_question(run: ArmRun) -> None:
    run.items["question"][3] += "?"


def wrong_answer(run: ArmRun) -> None:
    for column in ("expected", "reference_answer", "candidate_answer"):
        run.items[column][3] += " "


REFUSED = {
    another_draw: "items that the contract does not plan",
    of_another_task: "items that the contract does not plan",
    of_the_pilot: "items that the contract does not plan",
    beyond_the_plan: "items that the contract does not plan",
    copied: "is not that of the item",
    doubled: "several items share a context",
    wrong_slice: "the slice is not that of the item",
    no_slice: "the slice is not that of the item",
    wrong_question: "the question is not that of the item",
    wrong_answer: "the expected answer is not that of the item",
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", ["needle", "variable-tracking", "rare-copy", "tool-call"])
def test_r54_items_are_those_of_the_contract_or_no_evidence(kind, change) -> None:
    of = probe(kind)
    runs = runs_of(of)
    for run in runs:
        change(run)
    clause = clause_of(judged(of, *runs), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert REFUSED[change] in clause.reason


@pytest.mark.parametrize("tokens", [0, 256, 1024, None])
def test_r45_a_context_of_another_length_is_not_of_its_slice(tokens) -> None:
    of = probe("json")
    runs = runs_of(of)
    place = next(row for row in range(ITEMS) if "tokens=512" in item(row, "probe", settings_of(of)).labels)
    for run in runs:
        run.items["context_tokens"][place] = tokens
    clause = clause_of(judged(of, *runs), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "the length is not that of the item" in clause.reason


def in_slice(of: Contract, label: str) -> list[int]:
    return [row for row in range(ITEMS) if label in item(row, "probe", settings_of(of)).labels]


def lose(run: ArmRun, rows: list[int], side: str = "candidate") -> None:
    for row in rows:
        run.items[f"{side}_answer"][row], run.items[f"{side}_correct"][row] = "?", False


def test_r45_r93_a_slice_that_the_contract_names_can_breach_what_the_whole_does_not() -> None:
    of = probe("multi-key", 'slices = ["tokens=1024"]\n')
    runs = runs_of(of, reference_wrong=0)
    long = in_slice(of, "tokens=1024")
    assert len(long) == 45 == of.task["probe"].planned("tokens=1024", 8)
    lose(runs[0], long[:12])
    verdicts = judged(of, *runs)
    assert clause_of(verdicts, NAME, "task.probe").outcome is not Outcome.MET
    worst = clause_of(verdicts, NAME, "task.probe", "tokens=1024")
    assert (worst.outcome, worst.n) == (Outcome.BREACHED, 45)
    mild = clause_of(verdicts, NAME, "task.probe", "tokens=512")
    assert (mild.outcome, mild.details["descriptive"]) == (Outcome.MET, True)
    assert verdicts.outcome is Outcome.BREACHED


def test_every_slice_is_shown_and_those_that_the_contract_does_not_name_do_not_decide() -> None:
    of = probe("needle")
    runs = runs_of(of, reference_wrong=0)
    verdicts = judged(of, *runs)
    shown = {c.slice: c for v in verdicts.formats if v.arm == NAME for c in v.clauses if c.clause == "task.probe"}
    assert set(shown) == {"all", *settings_of(of).labels}
    assert all(clause.details["descriptive"] is (name != "all") for name, clause in shown.items())
    assert sum(shown[f"depth={depth}"].n for depth in ("early", "middle", "late")) == ITEMS


def test_a_slice_that_holds_every_item_is_not_said_twice() -> None:
    of = contract('[task.probe]\nkind = "common-words"\nmargin = 0.1\nitems = 90\n')
    verdicts = judged(of, *runs_of(of))
    assert [c.slice for v in verdicts.formats if v.arm == NAME for c in v.clauses] == ["all"]


def test_r57_a_slice_with_fewer_items_than_planned_decides_nothing() -> None:
    """An arm that lost its worst items would look better; that each arm lost them does not mend it."""
    of = probe("json", 'slices = ["depth=late"]\n')
    runs = runs_of(of, reference_wrong=0)
    gone = in_slice(of, "depth=late")[0]
    for run in runs:
        for values in run.items.values():
            del values[gone]
    clause = clause_of(judged(of, *runs), NAME, "task.probe", "depth=late")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "plans 30 contexts and 29 were scored" in clause.reason


def test_r49_a_task_whose_reference_misses_its_floor_is_never_met() -> None:
    of = probe("arithmetic")
    verdicts = judged(of, *runs_of(of, reference_wrong=50))
    clause = clause_of(verdicts, NAME, "task.probe")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "below its floor 0.5: the task cannot show a loss" in clause.reason
    assert control_of(verdicts, "reference_floor.probe").passed is False
    assert verdicts.exit_code == 3


@pytest.mark.parametrize(("design", "items"), [("fixed", ITEMS), ("sequential", 48)])
def test_r49_a_reference_that_cannot_lose_the_margin_meets_nothing_under_any_floor(design, items) -> None:
    """Of so few right answers no format can lose 10 points, so one that gets all wrong would pass."""
    of = probe("arithmetic", "ref_floor = 0.0\n[controls]\nrequire_canary_fail = false\n")
    of = of.model_copy(update={"inference": of.inference.model_copy(update={"design": design})})
    settings = settings_of(of)
    found = (ArmRun(NAME), ArmRun(CANARY, Role.CANARY), ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"))
    verdicts = judged(of, *(with_items(run, 0, 0, items, items - 4, "probe", settings) for run in found))
    clause = clause_of(verdicts, NAME, "task.probe")
    assert clause.outcome is Outcome.INCONCLUSIVE, clause.reason
    assert "no more than the margin 0.1: the task cannot show a larger loss" in clause.reason
    assert verdicts.exit_code == 3


def test_a_floor_that_one_slice_misses_holds_that_slice_only() -> None:
    of = probe("rare-copy", 'slices = ["rarity=rare"]\n')
    runs = runs_of(of, reference_wrong=0)
    rare = in_slice(of, "rarity=rare")
    for run in runs:
        lose(run, rare[:30], "reference")
        lose(run, rare[:30])
    verdicts = judged(of, *runs)
    assert clause_of(verdicts, NAME, "task.probe").outcome is not Outcome.BREACHED
    found = clause_of(verdicts, NAME, "task.probe", "rarity=rare")
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "below its floor" in found.reason
    assert clause_of(verdicts, NAME, "task.probe", "rarity=common").outcome is Outcome.MET
    assert verdicts.exit_code == 3


def test_b20_a_format_that_finds_needles_and_cannot_reckon_is_breached() -> None:
    of = contract(text_of("needle", "found") + text_of("arithmetic", "reckoned"))
    verdicts = judged(of, *joined(runs_of(of, "found"), runs_of(of, "reckoned", losses=60)))
    assert clause_of(verdicts, NAME, "task.found").outcome is Outcome.MET
    assert clause_of(verdicts, NAME, "task.reckoned").outcome is Outcome.BREACHED
    assert verdicts.outcome is Outcome.BREACHED
    assert verdicts.exit_code == 1


def test_one_kind_twice_with_other_settings() -> None:
    of = contract(text_of("json", "one") + text_of("json", "other"))
    runs = joined(runs_of(of, "one"), runs_of(of, "other"))
    assert judged(of, *runs).outcome is Outcome.MET
    names = runs[0].items["context"]
    assert len(set(names)) == 2 * ITEMS
    for run in runs:
        run.items["task"] = ["one" if task == "other" else "other" for task in run.items["task"]]
    verdicts = judged(of, *runs)
    for task in ("one", "other"):
        assert clause_of(verdicts, NAME, f"task.{task}").outcome is Outcome.INVALID_EVIDENCE
