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
    assert "context-004" in clause.reason


@pytest.mark.parametrize(
    ("column", "value"),
    [("reference_correct", False), ("expected", "7"), ("question", "other"), ("reference_answer", "8")],
)
def test_items_must_be_the_same_under_every_arm(column, value):
    runs = task_runs()
    runs[0].items[column][2] = value
    clause = task_clause(runs)
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "context-002" in clause.reason


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
