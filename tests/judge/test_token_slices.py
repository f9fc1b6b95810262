"""R46, R47: slices that follow from the rows alone: they part a run, whatever the order of rows and the arms."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.clauses.fidelity import TextWorkload
from kvassay.core.derived_slices import COMMON, CONFIDENT, DERIVED, POSITIONS, RARE, RARE_ONE_IN, UNSURE
from kvassay.core.records import TOKEN_COLUMNS, Outcome
from kvassay.judge.rows import read_tokens
from kvassay.judge.token_slices import TokenSlices, run_counts, token_slices
from tests.judge.runs import ARROW, again, canary, candidate, clause_of, contract, judged

PROMPT = 8
CUTS = (POSITIONS, (RARE, COMMON), (CONFIDENT, UNSURE))


def columns(ids: list[list[int]], top1: list[float], arm: str = "a") -> dict[str, list]:
    """Rows of documents with these true next tokens; `top1` is used round and round."""
    rows: dict[str, list] = {name: [] for name in TOKEN_COLUMNS}
    for document, tokens in enumerate(ids):
        for index, token in enumerate(tokens):
            place = len(rows["arm"])
            values = {"arm": arm, "slice": "s", "document": f"d{document:02}", "position": PROMPT + index}
            values |= {"token_id": token, "top1_agrees": True, "stored_reads": 1}
            values |= {"reference_top1_nats": top1[place % len(top1)]}
            for name, kind in TOKEN_COLUMNS.items():
                rows[name].append(values.get(name, 1.0 if kind == "float64" else None))
    return rows


def slices_of(
    parts: list[dict[str, list]], text: TextWorkload, order: list[int] | None = None
) -> dict[str, TokenSlices]:
    table = pa.table(
        {name: pa.array([v for part in parts for v in part[name]], ARROW[kind]) for name, kind in TOKEN_COLUMNS.items()}
    )
    if order is not None:
        table = table.take(order)
    arms = sorted({part["arm"][0] for part in parts})
    read = read_tokens(table, arms)
    counts = run_counts(read, text)
    return {arm: token_slices(read, rows, text, counts) for arm, rows in read.arms.items()}


documents = st.integers(4, 12).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 6), min_size=length, max_size=length), min_size=1, max_size=5)
)
confidences = st.lists(st.floats(0, 8), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(documents, confidences, st.data())
def test_r46_each_cut_parts_the_rows_whatever_their_order_and_the_arms(ids, top1, data) -> None:
    text = TextWorkload(prompt_tokens=PROMPT, scored_tokens=len(ids[0]) + 1, documents=len(ids))
    one = columns(ids, top1)
    rows = len(one["arm"])
    (found,) = slices_of([one], text).values()
    masks = {part.label: part.mask for part in found.slices}
    assert set(masks) <= set(DERIVED), "one cell is no slice of its own"
    for cut in CUTS:
        shares = [masks[label] for label in cut if label in masks]
        assert np.array_equal(np.sum(shares, axis=0), np.ones(rows)), "every token is in one part"
    # Another order of rows, and other arms beside, change nothing.
    order = data.draw(st.permutations(range(2 * rows)))
    shuffled = slices_of([one, columns(ids, top1, arm="b")], text, order)
    for arm in ("a", "b"):
        again_masks = {part.label: part.mask for part in shuffled[arm].slices}
        assert again_masks.keys() == masks.keys()
        assert all(np.array_equal(again_masks[label], mask) for label, mask in masks.items())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(4, 40))
def test_positions_are_thirds_of_the_scored_part(documents_, length) -> None:
    text = TextWorkload(prompt_tokens=PROMPT, scored_tokens=length + 1, documents=documents_)
    (found,) = slices_of([columns([[1] * length] * documents_, [0.5])], text).values()
    sizes = [int(part.mask.sum()) // documents_ for part in found.slices if part.label in POSITIONS]
    assert sizes == [
        math.ceil(length / 3),
        math.ceil(2 * length / 3) - math.ceil(length / 3),
        length - math.ceil(2 * length / 3),
    ]
    early = next(part for part in found.slices if part.label == POSITIONS[0])
    assert set(found.rows.position[early.mask]) == set(range(PROMPT, PROMPT + sizes[0]))


def test_r46_a_token_is_rare_by_its_count_over_the_whole_run() -> None:
    """At most one in 2,000: one occurrence among 4,001 tokens is rare, and so are two, but not three."""
    length, count = 127, 32
    tokens = [0] * (length * count)
    for place, token in ((5, 1), (7, 2), (2000, 2), (9, 3), (1000, 3), (4000, 3)):
        tokens[place] = token
    ids = [tokens[begin : begin + length] for begin in range(0, len(tokens), length)]
    assert 2 * RARE_ONE_IN <= length * count < 3 * RARE_ONE_IN
    text = TextWorkload(prompt_tokens=PROMPT, scored_tokens=length + 1, documents=count)
    (found,) = slices_of([columns(ids, [0.5])], text).values()
    rare = next(part for part in found.slices if part.label == RARE)
    assert Counter(found.rows.token_id[rare.mask].tolist()) == {1: 1, 2: 2}


def test_a_run_too_short_to_tell_has_no_rare_token() -> None:
    text = TextWorkload(prompt_tokens=PROMPT, scored_tokens=6, documents=1)
    (found,) = slices_of([columns([[1, 2, 3, 4, 5]], [0.5])], text).values()
    assert RARE not in {part.label for part in found.slices}


def test_half_the_probability_is_confident() -> None:
    text = TextWorkload(prompt_tokens=PROMPT, scored_tokens=6, documents=1)
    (found,) = slices_of([columns([[1, 2, 3, 4, 5]], [0.0, math.log(2), math.log(2) + 1e-9, 3.0, 0.1])], text).values()
    confident = next(part for part in found.slices if part.label == CONFIDENT)
    assert confident.mask.tolist() == [True, True, False, False, True]


def test_tokens_of_a_derived_slice_stay_clustered_by_document() -> None:
    verdicts = judged(contract(), candidate(), canary(), again())
    early = clause_of(verdicts, "int8-token-head", part="position=early")
    assert (early.n, early.n_unit, early.details["tokens"]) == (24, "documents", 24 * 6)
    assert early.details["descriptive"] is True


def test_unknown_confidence_makes_its_slices_invalid_and_no_other() -> None:
    runs = candidate(), canary(), again()
    for run in runs:
        run.tokens["reference_top1_nats"][3] = None
    text = '[fidelity.kl_mean]\nmax = 0.01\nslices = ["confidence=high", "position=late"]\n'
    verdicts = judged(contract(text), *runs)
    high = clause_of(verdicts, "int8-token-head", part=CONFIDENT)
    assert high.outcome is Outcome.INVALID_EVIDENCE
    assert "reference_top1_nats is missing at 1 of 384" in high.reason
    assert clause_of(verdicts, "int8-token-head", part="position=late").outcome is Outcome.MET
    assert clause_of(verdicts, "int8-token-head").outcome is Outcome.MET


@pytest.mark.parametrize(("value", "words"), [(50.0, "above the reference's NLL"), (-0.1, "below 0")])
def test_false_pass_an_impossible_confidence_is_no_evidence(value, words) -> None:
    """A token cannot be less likely than the most likely one: someone moved a position into another slice."""
    runs = candidate(), canary(), again()
    for run in runs:
        run.tokens["reference_top1_nats"][3] = value
    clause = clause_of(judged(contract(), *runs), "int8-token-head")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert words in clause.reason


def test_arms_that_disagree_on_the_reference_are_no_evidence() -> None:
    run = candidate()
    run.tokens["reference_top1_nats"][3] /= 2
    clause = clause_of(judged(contract(), run, canary(), again()), "int8-token-head")
    assert clause.outcome is Outcome.INVALID_EVIDENCE
    assert "most likely token differ between arms" in clause.reason
