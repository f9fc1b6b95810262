"""Rows that may not be used: non-finite, unpaired, doubled, copied, or of another identity (R41, R108)."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from kvassay.core.records import ITEM_COLUMNS, TOKEN_COLUMNS, Outcome, Role
from kvassay.errors import PackError
from kvassay.judge import judge
from tests.judge.runs import (
    CANARY,
    SCORED_TOKENS,
    ArmRun,
    again,
    canary,
    candidate,
    clause_of,
    contract,
    item,
    judged,
    table,
    with_items,
)

NAME = "int8-token-head"
OTHER = "q8_0"
TASK = "[task.recall]\nmargin = 0.05\nitems = 64\n"


def drop_rows(columns, *rows):
    return {name: [v for index, v in enumerate(values) if index not in rows] for name, values in columns.items()}


def two_candidates(change):
    """Judge two equal candidates after `change` was made to the first."""
    first, second = candidate(NAME), candidate(OTHER)
    change(first)
    return judged(contract(order=(NAME, OTHER)), first, second, canary(), again())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_values_that_are_not_finite_are_counted_and_never_zero(value):
    run = candidate()
    run.tokens["kl_nats"][3] = run.tokens["kl_nats"][40] = value
    verdicts = judged(contract(), run, canary(), again())
    clause = clause_of(verdicts, NAME)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "2 of 384 positions" in clause.reason
    assert clause.estimate is None
    assert verdicts.exit_code == 3


def test_each_clause_looks_at_its_own_column():
    text = "[fidelity.kl_mean]\nmax = 0.01\n[fidelity.nll_delta]\nmax = 0.01\n"
    run = candidate()
    run.tokens["nll_candidate_nats"][3] = None
    verdicts = judged(contract(text), run, canary(), again())
    assert clause_of(verdicts, NAME).outcome is Outcome.MET
    assert clause_of(verdicts, NAME, "fidelity.nll_delta").outcome is Outcome.INVALID_EVIDENCE


def test_a_negative_kl_is_a_fault_and_rounding_is_not():
    run = candidate()
    run.tokens["kl_nats"][3] = -1e-6
    assert clause_of(judged(contract(), run, canary(), again()), NAME).outcome is Outcome.MET
    run.tokens["kl_nats"][3] = -0.01
    assert clause_of(judged(contract(), run, canary(), again()), NAME).outcome is Outcome.INVALID_EVIDENCE


def test_a_deleted_row_is_found():
    def change(run):
        run.tokens = drop_rows(run.tokens, 17)

    verdicts = two_candidates(change)
    clause = clause_of(verdicts, NAME)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "lacks 1 of the other arms' positions, first document 'doc-01' position 97" in clause.reason
    assert clause_of(verdicts, OTHER).outcome is Outcome.MET


def test_the_worst_document_cannot_be_left_out():
    def change(run):
        run.tokens = drop_rows(run.tokens, *range(SCORED_TOKENS))

    assert clause_of(two_candidates(change), NAME).outcome is Outcome.INVALID_EVIDENCE


def test_a_doubled_row_is_found():
    def change(run):
        for values in run.tokens.values():
            values.append(values[5])

    assert "stands twice" in clause_of(two_candidates(change), NAME).reason


def test_arms_must_have_read_the_same_tokens():
    def change(run):
        run.tokens["token_id"][9] += 1

    verdicts = two_candidates(change)
    for arm in (NAME, OTHER, CANARY):
        assert clause_of(verdicts, arm).outcome is Outcome.INVALID_EVIDENCE
        assert "true next tokens differ" in clause_of(verdicts, arm).reason


def test_arms_must_have_had_the_same_reference():
    """R41: one fixed reference. Rounding is let through, another reference is not."""

    def change_by(nats):
        def change(run):
            run.tokens["nll_reference_nats"][9] += nats

        return change

    assert clause_of(two_candidates(change_by(1e-6)), NAME).outcome is Outcome.MET
    verdicts = two_candidates(change_by(0.01))
    assert "reference NLLs differ" in clause_of(verdicts, NAME).reason
    assert clause_of(verdicts, NAME).outcome is Outcome.INVALID_EVIDENCE


def test_copies_of_one_document_are_not_many_documents():
    """24 names for 12 documents would halve the standard error for nothing."""
    runs = [candidate(), canary(), again()]
    for run in runs:
        half = len(run.tokens["arm"]) // 2
        for name, values in run.tokens.items():
            if name != "document":
                values[half:] = values[:half]
    clause = clause_of(judged(contract(), *runs), NAME)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "copies" in clause.reason


def test_a_copy_whose_figures_were_touched_is_still_a_copy():
    """A copy differs from its original by whatever its author likes; its tokens are the original's."""
    runs = [candidate(), canary(), again()]
    for run in runs:
        half = len(run.tokens["arm"]) // 2
        run.tokens["token_id"][half:] = run.tokens["token_id"][:half]
        for name in ("nll_reference_nats", "nll_candidate_nats"):
            run.tokens[name] = [value + 1e-7 * index for index, value in enumerate(run.tokens[name])]
    clause = clause_of(judged(contract(), *runs), NAME)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "'doc-12' of 'doc-00' (and 11 more)" in clause.reason


def more_positions(columns, positions):
    """Every document with its last row again at further positions."""
    rows = list(zip(*columns.values(), strict=True))
    place = list(columns).index("position")
    last = max(columns["position"])
    added = [(*row[:place], last + step, *row[place + 1 :]) for row in rows if row[place] == last for step in positions]
    return dict(zip(columns, map(list, zip(*rows, *added, strict=True)), strict=True))


PLACES = {
    "shifted": lambda c: {**c, "position": [position + 1 for position in c["position"]]},
    "one further": lambda c: more_positions(c, [1]),
    "many further": lambda c: more_positions(c, range(1, 40)),
    "one a document": lambda c: drop_rows(c, *(i for i, p in enumerate(c["position"]) if p != 96)),
    "the last missing": lambda c: drop_rows(c, *(i for i, p in enumerate(c["position"]) if p == 111)),
    "the worst missing": lambda c: drop_rows(c, *(i for i, p in enumerate(c["position"]) if p == 100)),
    "a gap filled behind": lambda c: {**c, "position": [112 if p == 100 else p for p in c["position"]]},
    "one document only": lambda c: drop_rows(c, 7),
}


@pytest.mark.parametrize("kind", PLACES)
def test_every_document_holds_the_positions_of_the_contract_and_no_other(kind):
    """R56: which positions count is fixed before the run; choosing them afterwards is choosing the result."""
    runs = [candidate(), canary(), again()]
    for run in runs:
        run.tokens = PLACES[kind](run.tokens)
    verdicts = judged(contract(), *runs)
    for arm in (NAME, CANARY):
        clause = clause_of(verdicts, arm)
        assert clause.outcome is Outcome.INVALID_EVIDENCE
        assert "other positions than the contract scores" in clause.reason
        assert "expected each from 96 to 111 once" in clause.reason
    assert verdicts.exit_code == 3


def test_the_contract_says_which_positions():
    runs = [candidate(), canary(), again()]
    assert judged(contract(), *runs).outcome is Outcome.MET
    for scored in (SCORED_TOKENS, SCORED_TOKENS + 2):
        assert judged(contract(scored_tokens=scored), *runs).outcome is Outcome.INVALID_EVIDENCE


def task_runs():
    return [
        with_items(ArmRun(NAME), 0),
        with_items(ArmRun(CANARY, Role.CANARY), 50),
        with_items(ArmRun("f32 again 1", Role.REFERENCE_AGAIN, "f32"), 0),
    ]


def task_clause(runs):
    return clause_of(judged(contract(TASK), *runs), NAME, "task.recall")


def test_items_that_share_a_context_are_not_independent():
    runs = task_runs()
    for run in runs:
        run.items["context"][1] = run.items["context"][0]
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "unit of independence" in clause.reason


def test_a_lost_item_cannot_be_left_out():
    runs = task_runs()
    runs[0].items = drop_rows(runs[0].items, 4)
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert item(4).id in clause.reason


@pytest.mark.parametrize(
    ("column", "value"),
    [("reference_correct", False), ("expected", "7"), ("question", "other"), ("reference_answer", "8")],
)
def test_items_must_be_the_same_under_every_arm(column, value):
    runs = task_runs()
    runs[0].items[column][2] = value
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert item(2).id in clause.reason


def copied(items, renamed):
    """The second item is the first one again, under a name of its own."""
    for name, values in items.items():
        if name != "context" or not renamed:
            values[1] = values[0]


def test_a_copied_item_under_another_name_is_found():
    """An item is what its name says: its expected answer follows from seed and number."""
    runs = task_runs()
    for run in runs:
        copied(run.items, renamed=True)
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert f"the expected answer is not that of the item in the contexts {item(1).id!r}" in clause.reason


@pytest.mark.parametrize(
    "name",
    [
        "recall/7/7",  # of the pilot
        "recall/7/72",  # beyond the planned ones
        "recall/8/9",  # of another seed
        "recall/7/09",
        "recall/7/\u0669",
        "recall/7/9/9",
        "other",
        "",
        "recall/7/99999999999999999999",
    ],
)
def test_items_that_the_contract_does_not_plan(name):
    """Items chosen from a longer sequence could be the ones that went well."""
    runs = task_runs()
    for run in runs:
        run.items["context"][1] = name
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert f"items that the contract does not plan: {name!r}" in clause.reason


def test_an_item_in_the_slice_of_another():
    runs = task_runs()
    for run in runs:
        run.items["slice"][1] = next(cell for cell in ("depth=early", "depth=late") if cell not in item(1).labels)
    assert "the slice is not that of the item" in task_clause(runs).reason


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("change", ["answer", "correct", "no answer", "near"])
def test_correctness_follows_from_the_answer(side, change):
    runs = task_runs()
    for run in runs:
        if change == "correct":
            run.items[f"{side}_correct"][2] = not run.items[f"{side}_correct"][2]
        else:
            expected = run.items["expected"][2]
            answer = {"answer": "0000", "no answer": None, "near": expected + " "}[change]
            run.items[f"{side}_answer"][2] = answer
            run.items[f"{side}_correct"][2] = True
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert f"{side}_correct does not follow from the answer in 1 contexts: {item(2).id!r}" in clause.reason


def test_no_expected_answer_is_no_evidence():
    runs = task_runs()
    for run in runs:
        run.items["expected"][2] = None
    assert task_clause(runs).outcome is Outcome.INVALID_EVIDENCE


@pytest.mark.parametrize("column", ["reference_correct", "candidate_correct"])
def test_correctness_that_is_missing(column):
    runs = task_runs()
    for run in runs if column == "reference_correct" else runs[:1]:
        run.items[column][2] = None
    assert "correctness is missing in 1 of 64 items" in task_clause(runs).reason


def test_the_digest_must_be_that_of_the_format():
    run = candidate()
    arm = run.record().model_copy(update={"format": canary().record().format})
    tokens = table([run.tokens], TOKEN_COLUMNS)
    verdicts = judge(contract(), [arm], {}, tokens, table([], ITEM_COLUMNS))
    assert clause_of(verdicts, NAME).outcome is Outcome.INVALID_EVIDENCE
    assert "digest" in clause_of(verdicts, NAME).reason


def test_the_ledger_must_be_that_of_the_format():
    text = "[bytes]\npersistent_per_token_max = 1e9\n"
    verdicts = judged(contract(text), candidate(), ledgers={NAME: candidate("q4_0").ledger()})
    assert clause_of(verdicts, NAME, "bytes.persistent_per_token_max").outcome is Outcome.INVALID_EVIDENCE
    assert verdicts.exit_code == 3


def test_a_candidate_that_the_contract_does_not_name():
    verdicts = judged(contract(), candidate(), candidate(OTHER), canary(), again())
    assert (verdicts.outcome, verdicts.exit_code) == (Outcome.INVALID_EVIDENCE, 3)
    assert OTHER in verdicts.reason


def call(tokens=None, items=None, arms=None):
    run = candidate()
    return judge(
        contract(),
        [run.record()] if arms is None else arms,
        {},
        table([run.tokens], TOKEN_COLUMNS) if tokens is None else tokens,
        table([], ITEM_COLUMNS) if items is None else items,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": pa.table({"arm": ["x"]})}, "lack the columns"),
        ({"items": pa.table({"arm": ["x"]})}, "lack the columns"),
        ({"arms": []}, "not declared"),
        ({"arms": [candidate().record(), candidate().record()]}, "distinct names"),
        (
            {"arms": [candidate().record(), candidate().record().model_copy(update={"name": "twin"})]},
            "the same format",
        ),
    ],
)
def test_tables_and_arms_that_cannot_be_judged(arguments, message):
    with pytest.raises(PackError, match=message):
        call(**arguments)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("document", None, "document is null"), ("position", None, "position is null"), ("position", -1, "0 or more")],
)
def test_rows_without_a_place(column, value, message):
    run = candidate()
    run.tokens[column][0] = value
    with pytest.raises(PackError, match=message):
        call(tokens=table([run.tokens], TOKEN_COLUMNS))


def test_a_column_of_another_type():
    tokens = table([candidate().tokens], TOKEN_COLUMNS)
    place = tokens.column_names.index("kl_nats")
    with pytest.raises(PackError, match="kl_nats is of type string"):
        call(tokens=tokens.set_column(place, "kl_nats", pa.array(["much"] * tokens.num_rows)))
