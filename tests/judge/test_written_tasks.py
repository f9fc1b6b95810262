"""Written answers: right apart from parsed, and which rows count (R44 to R54)."""

from __future__ import annotations

import pytest

from kvassay.core.records import Outcome
from kvassay.core.tasks.answers import MAX_ANSWER_CHARACTERS
from kvassay.core.tasks.kinds import KINDS
from kvassay.errors import PackError

from .answer_runs import ITEMS, NAME, Rows, arms, contract, failing, ids_of, item, judged, right, rows
from .generation_runs import ids_text
from .runs import clause_of, control_of, verdict_of, with_tokens

PARSE = "parse_margin = 0.1\n"
UNREAD = '{"number": 1,\n\n'
WRONG = '{"number": 1}'


def named(found, name: str):
    return next(control for control in verdict_of(found, NAME).controls if control.name == name)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_r44_a_written_task_of_any_kind_is_met_by_a_format_that_loses_nothing(kind) -> None:
    of = contract(kind, "[fidelity.kl_mean]\nmax = 0.1\n" if kind in ("needle", "passkey") else "")
    found = judged(of, arms(of))
    clause = clause_of(found, NAME, "task.probe")
    assert clause.outcome is Outcome.MET, clause.reason
    assert clause.details["measure"] == "written"
    assert "(written)" in clause.reason
    assert clause.details["equal_answers"] == 1
    assert ("reference_parse_rate" in clause.details) is (kind in ("json", "tool-call"))
    assert ("reference_right_lines" in clause.details) is (kind in ("counting", "table-copy"))
    assert named(found, "engaged.task.probe").passed
    assert named(found, "drift.task.probe").passed
    lost = judged(of, arms(of, failing(0.6, "?\n")))
    assert clause_of(lost, NAME, "task.probe").outcome is Outcome.BREACHED


@pytest.mark.parametrize("kind", ["json", "tool-call"])
def test_b06_an_answer_that_parses_and_is_wrong_costs_accuracy_and_no_parse_rate(kind) -> None:
    of = contract(kind, PARSE)
    wrong = WRONG if kind == "json" else '{"name": "open_door", "arguments": {}}'
    found = judged(of, arms(of, failing(0.6, wrong)))
    accuracy, parse = (clause_of(found, NAME, name) for name in ("task.probe", "task.probe.parse"))
    assert (accuracy.outcome, parse.outcome) == (Outcome.BREACHED, Outcome.MET)
    assert accuracy.details["candidate_accuracy"] == pytest.approx(0.4)
    for clause in (accuracy, parse):
        assert (clause.details["reference_parse_rate"], clause.details["candidate_parse_rate"]) == (1, 1)
    unread = judged(of, arms(of, failing(0.6, UNREAD)))
    parse = clause_of(unread, NAME, "task.probe.parse")
    assert parse.outcome is Outcome.BREACHED
    assert "parse rate (written) changed by -60.00 points" in parse.reason
    assert parse.details["candidate_parse_rate"] == pytest.approx(0.4)


def test_b06_calls_that_stop_parsing_breach_a_contract_whose_perplexity_is_met() -> None:
    of = contract("tool-call", "parse_margin = 0.05\n[fidelity.nll_delta]\nmax = 0.01\n")
    found = arms(of, failing(0.25, '<call>{"name": '))
    for name, mean_kl in (("candidate", 1e-4), ("canary", 1.0), ("again", 0.0)):
        with_tokens(found[name][0], mean_kl)
    verdicts = judged(of, found)
    assert clause_of(verdicts, NAME, "fidelity.nll_delta").outcome is Outcome.MET
    parse = clause_of(verdicts, NAME, "task.probe.parse")
    assert parse.outcome is Outcome.BREACHED
    assert (parse.details["reference_parse_rate"], parse.details["candidate_parse_rate"]) == (1, 0.75)
    assert verdicts.exit_code == 1


def test_b05_answers_without_a_character_are_counted_apart_from_wrong_ones() -> None:
    of = contract("recall")
    empty = clause_of(judged(of, arms(of, failing(0.5, "\n"))), NAME, "task.probe")
    wrong = clause_of(judged(of, arms(of, failing(0.5, "?\n"))), NAME, "task.probe")
    assert empty.details["candidate_accuracy"] == wrong.details["candidate_accuracy"] == 0.5
    assert (empty.details["reference_empty"], empty.details["candidate_empty"]) == (0, 0.5)
    assert wrong.details["candidate_empty"] == 0


def test_a_parse_rate_that_the_contract_does_not_bound_is_shown_and_decides_nothing() -> None:
    of = contract()
    found = judged(of, arms(of, failing(0.05, UNREAD)))
    assert {clause.clause for clause in verdict_of(found, NAME).clauses} == {"task.probe"}
    assert clause_of(found, NAME, "task.probe").details["candidate_parse_rate"] < 1


def test_a_reference_that_does_not_parse_shows_no_loss_of_parse_rate() -> None:
    of = contract(extra=PARSE)
    unread = failing(0.7, UNREAD)
    found = judged(of, arms(of, unread, reference=unread))
    parse = clause_of(found, NAME, "task.probe.parse")
    assert parse.outcome is Outcome.INCONCLUSIVE
    assert "the reference has a parse rate of 0.3 of the items, below its floor 0.5" in parse.reason
    assert control_of(found, "reference_floor.probe").passed is False
    assert found.exit_code == 3


def test_r52_equal_answers_are_equal_as_answers_and_not_as_texts() -> None:
    of = contract()
    spelt = judged(of, arms(of, lambda place, draw: draw.expected.replace(", ", ",  ")))
    assert clause_of(spelt, NAME, "task.probe").details["equal_answers"] == 1
    wrong = failing(1.0, WRONG)
    both = judged(of, arms(of, failing(1.0, '{ "number":1 }'), reference=wrong))
    assert clause_of(both, NAME, "task.probe").details["equal_answers"] == 1
    other = judged(of, arms(of, failing(0.2, WRONG)))
    assert clause_of(other, NAME, "task.probe").details["equal_answers"] == pytest.approx(0.8)


def test_r49_lines_of_long_generation_count_up_to_the_first_wrong_one() -> None:
    of = contract("table-copy", "lines = [4]\n")

    def half(place, draw):
        lines = draw.expected.split("\n")
        return "\n".join([*lines[:2], lines[2] + "?", lines[3], ""])

    clause = clause_of(judged(of, arms(of, half)), NAME, "task.probe")
    assert clause.details["candidate_right_lines"] == pytest.approx(0.5)
    assert clause.details["reference_right_lines"] == 1
    assert clause.details["candidate_accuracy"] == 0


def test_r93_a_slice_that_the_contract_names_decides_with_both_clauses() -> None:
    of = contract(extra=PARSE + 'slices = ["depth=late"]\n')
    late = {place for place in range(ITEMS) if "depth=late" in _labels(of, place)}

    def writes(place, draw):
        return UNREAD if place in sorted(late)[:12] else right(place, draw)

    found = judged(of, arms(of, writes))
    for name in ("task.probe", "task.probe.parse"):
        clause = clause_of(found, NAME, name, "depth=late")
        assert (clause.outcome, clause.n) == (Outcome.BREACHED, 20)
        assert clause_of(found, NAME, name, "depth=early").details["descriptive"] is True
    assert control_of(found, "canary.task.probe.depth=late").passed


def test_r49_a_slice_of_lengths_of_answers() -> None:
    of = contract("counting", 'lines = [2, 8]\nslices = ["lines=8"]\n')
    clause = clause_of(judged(of, arms(of)), NAME, "task.probe", "lines=8")
    assert (clause.outcome, clause.n) == (Outcome.MET, 30)


def _labels(of, place):
    return item(place, "probe", of.task["probe"].settings).labels


def moved(columns: Rows, column: str, value) -> None:
    columns[column][3] = value


REFUSED = {
    "another-draw": (lambda c: moved(c, "context", "probe/8/11"), "items that the contract does not plan"),
    "of-the-pilot": (lambda c: moved(c, "context", "probe/7/7"), "items that the contract does not plan"),
    "beyond": (lambda c: moved(c, "context", f"probe/7/{8 + ITEMS}"), "items that the contract does not plan"),
    "padded-name": (lambda c: moved(c, "context", "probe/7/011"), "items that the contract does not plan"),
    "doubled": (lambda c: [values.__setitem__(3, values[4]) for values in c.values()], "several rows of one prompt"),
    "copied": (lambda c: moved(c, "prompt_ids", c["prompt_ids"][4]), "prompts are copies"),
    "slice": (lambda c: moved(c, "slice", c["slice"][4]), "the slice is not that of the item"),
    "length": (lambda c: moved(c, "context_tokens", 200), "the length is not that of the item"),
    "no-length": (lambda c: moved(c, "context_tokens", None), "the length is not that of the item"),
    "all-context": (lambda c: moved(c, "context_tokens", 600), "the length is not that of the item"),
    "text-of-other-ids": (lambda c: moved(c, "candidate_text", WRONG), "equal token ids have several texts"),
    "reads": (lambda c: moved(c, "reading_queries", 100_000), "more stored reads than queries"),
    "drift": (lambda c: moved(c, "logit_drift", -1.0), "logit_drift is negative or not finite"),
}


@pytest.mark.parametrize(("change", "reason"), REFUSED.values(), ids=REFUSED)
def test_r54_written_items_are_those_of_the_contract_or_no_evidence(change, reason) -> None:
    of = contract(extra=PARSE)
    found = arms(of)
    for name, (_, columns) in found.items():
        if reason != "equal token ids have several texts" or name == "candidate":
            change(columns)
    verdicts = judged(of, found)
    for name in ("task.probe", "task.probe.parse"):
        clause = clause_of(verdicts, NAME, name)
        assert clause.outcome is Outcome.INVALID_EVIDENCE
        assert reason in clause.reason


@pytest.mark.parametrize("column", ["prompt_ids", "end_ids", "reference_ids"])
def test_r57_arms_of_another_prompt_or_reference_were_not_compared(column) -> None:
    of = contract()
    found = arms(of)
    found["candidate"][1][column][3] = "5 0"
    clause = clause_of(judged(of, found), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "differs between arms" in clause.reason


def test_an_answer_that_stops_where_nothing_ends_it_was_cut() -> None:
    of = contract()
    found = arms(of)
    for _, columns in found.values():
        columns["candidate_text"][3] = '{"number": '
        columns["candidate_ids"][3] = ids_text(ids_of('{"number": '))
        columns["reading_queries"][3] = 0
    clause = clause_of(judged(of, found), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "without an end token" in clause.reason


def test_an_answer_longer_than_the_contract_allows_is_refused() -> None:
    of = contract(extra="answer_tokens = 20\n")
    clause = clause_of(judged(of, arms(of)), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "the contract plans 1 to 20" in clause.reason


def test_texts_have_a_largest_length() -> None:
    of = contract(extra="answer_tokens = 65536\n")
    long = "x" * (MAX_ANSWER_CHARACTERS + 1)
    found = arms(of)
    for _, columns in found.values():
        columns["candidate_text"][3], columns["candidate_ids"][3] = long, ids_text([*ids_of("xx"), 0])
        columns["reading_queries"][3] = 0
    clause = clause_of(judged(of, found), NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "characters" in clause.reason


def test_r57_fewer_items_than_planned_decide_nothing() -> None:
    of = contract()
    found = arms(of)
    for _, columns in found.values():
        for values in columns.values():
            del values[5]
    clause = clause_of(judged(of, found), NAME, "task.probe")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "plans 60 contexts and 59 were scored" in clause.reason


def test_answers_whose_queries_read_no_codes_show_nothing() -> None:
    of = contract()
    found = arms(of)
    for columns in ("reading_queries", "stored_reads"):
        found["candidate"][1][columns] = [0] * ITEMS if columns == "reading_queries" else [0.0] * ITEMS
    verdicts = judged(of, found)
    clause = clause_of(verdicts, NAME, "task.probe")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "not engaged: no query read a token from the quantized store" in clause.reason
    assert named(verdicts, "engaged.task.probe").passed is False


def test_a_slice_whose_queries_read_no_codes_shows_nothing_by_itself() -> None:
    of = contract(extra='slices = ["depth=late"]\n')
    found = arms(of)
    columns = found["candidate"][1]
    for place, cell in enumerate(columns["slice"]):
        if "depth=late" in cell:
            columns["reading_queries"][place], columns["stored_reads"][place] = 0, 0.0
    verdicts = judged(of, found)
    assert clause_of(verdicts, NAME, "task.probe").outcome is Outcome.MET
    clause = clause_of(verdicts, NAME, "task.probe", "depth=late")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "not engaged in slice 'depth=late'" in clause.reason


def test_a_canary_that_answers_as_well_leaves_the_task_blind() -> None:
    of = contract()
    clause = clause_of(judged(of, arms(of, canary=right)), NAME, "task.probe")
    assert clause.outcome is Outcome.INCONCLUSIVE
    assert "it would not see damage" in clause.reason


def test_rows_without_answers_are_not_measured_and_the_floor_was_not_run() -> None:
    of = contract(extra=PARSE)
    found = arms(of)
    for _, columns in found.values():
        for values in columns.values():
            values.clear()
    verdicts = judged(of, found)
    assert {c.outcome for c in verdict_of(verdicts, NAME).clauses} == {Outcome.NOT_MEASURED}
    assert control_of(verdicts, "reference_floor.probe").passed is None


def test_rows_that_are_no_rows_are_refused() -> None:
    of = contract()
    found = arms(of)
    found["candidate"][1]["candidate_ids"][3] = "1  2"
    with pytest.raises(PackError, match=r"answer rows: candidate_ids of context 'probe/7/11'"):
        judged(of, found)


def test_the_order_of_rows_does_not_matter() -> None:
    of = contract()
    run = arms(of)["candidate"][0]
    one, other = arms(of, failing(0.1, WRONG)), arms(of, failing(0.1, WRONG))
    other["candidate"] = (run, {name: values[::-1] for name, values in rows(of, run, failing(0.1, WRONG)).items()})
    assert judged(of, one) == judged(of, other)
