"""R31: largest batch and longest context against trying every one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.capacity import (
    MOST_TOKENS,
    Budget,
    Holds,
    Limit,
    capacity,
    largest_batch,
    largest_context,
)
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.fullest_length import RowGrowth
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import predict_ledger
from kvassay.errors import GeometryError
from tests.thorough import times


def geometry(windows: tuple[int | None, ...] = (None, None), max_context: int | None = None) -> CacheGeometry:
    layers = tuple(LayerGeometry(kv_heads=2, head_dim=64, value_dim=64, sliding_window=window) for window in windows)
    return CacheGeometry(model_type="test", query_heads=4, layers=layers, max_context=max_context)


FORMATS = st.builds(
    "{},sinks={},recent={}{}".format,
    st.sampled_from(
        [
            "f16",
            "int4-g64",
            "kivi-2",
            "kivi-4",
            "k=int4:channel48,v=int2:group16",
            "k=int4:channel20,v=int4:channel112",
            "k=int4:channel5,v=int2:channel7",
            "kvarn",
        ]
    ),
    st.integers(0, 5),
    st.integers(0, 40),
    st.sampled_from(["", "", ",skip=1", ",@0=int8-token-head"]),
)
WINDOWS = st.sampled_from([(None, None), (33, None), (100, 70)])


def used_growing_to(shape, kv_format, budget, tokens, batch) -> int:
    """The definition, written out: the most that any length on the way takes, and the steps at the longest."""
    ledgers = [predict_ledger(shape, kv_format, length, batch) for length in range(1, tokens + 1)]
    return max(budget.used_nbytes(ledger, ledgers[-1]) for ledger in ledgers)


@settings(max_examples=40, deadline=None)
@given(FORMATS, WINDOWS, st.integers(1, 200), st.integers(1, 40), st.sampled_from(Holds), st.integers(-1, 1))
def test_r31_the_batch_fits_at_every_length_and_the_next_does_not(
    name, windows, tokens, rows, holds, bytes_beside
) -> None:
    """The budget is what some batch takes, to the byte, or one byte beside it."""
    shape, kv_format = geometry(windows), parse_format(name)
    budget = Budget(1, holds, weights_nbytes=12_345)
    budget = budget._replace(nbytes=used_growing_to(shape, kv_format, budget, tokens, rows) + bytes_beside)
    found = largest_batch(shape, kv_format, budget, tokens)
    assert found.batch == rows - (bytes_beside < 0)
    assert found.limit is Limit.BUDGET
    assert found.next_nbytes == used_growing_to(shape, kv_format, budget, tokens, found.batch + 1) > budget.nbytes
    if found.batch:
        assert found.used_nbytes == used_growing_to(shape, kv_format, budget, tokens, found.batch) <= budget.nbytes
    else:
        assert found.used_nbytes == 0


@settings(max_examples=times(15, 60), deadline=None)
@given(FORMATS, WINDOWS, st.integers(1, 40_000))
def test_r31_every_length_up_to_the_longest_context_fits_and_one_more_does_not(name, windows, budget_nbytes) -> None:
    shape, kv_format, budget = geometry(windows), parse_format(name), Budget(budget_nbytes)
    found = largest_context(shape, kv_format, budget)
    lengths = range(1, 600)
    fits = [predict_ledger(shape, kv_format, length).persistent_nbytes <= budget_nbytes for length in lengths]
    first_misfit = fits.index(False) + 1 if False in fits else None
    if first_misfit is None:
        assert (found.tokens, found.limit) == (MOST_TOKENS, Limit.SEARCH_END)
    else:
        assert (found.tokens, found.limit) == (first_misfit - 1, Limit.BUDGET)


@settings(max_examples=25, deadline=None)
@given(FORMATS, WINDOWS, st.integers(1, 400))
def test_the_fullest_length_is_the_fullest_of_all(name, windows, tokens) -> None:
    """A row's bytes at each length, from ledgers of one and of two rows; of equal lengths the longest is named."""
    shape, kv_format = geometry(windows), parse_format(name)
    growth = RowGrowth(shape, kv_format)
    rows = []
    for length in range(1, tokens + 1):
        one, two = (predict_ledger(shape, kv_format, length, batch) for batch in (1, 2))
        rows.append(two.persistent_nbytes - one.persistent_nbytes)
    assert growth.nbytes(tokens) == rows[-1]
    assert rows[growth.fullest_length(tokens) - 1] == max(rows)


def test_bytes_fall_when_a_block_is_packed_and_the_fullest_length_is_just_before() -> None:
    """Keys wait in blocks of 64 beside a window of 32 tokens: six pages of 16 before the 96th token, two after."""
    shape, kv_format = geometry(), parse_format("kivi-4,recent=32")
    before, after = (predict_ledger(shape, kv_format, length) for length in (64 * 9 + 31, 64 * 9 + 32))
    assert after.persistent_nbytes < before.persistent_nbytes
    assert RowGrowth(shape, kv_format).fullest_length(64 * 9 + 32) == 64 * 9 + 31


@pytest.mark.parametrize("windows", [(None, None), (512, 512)])
def test_a_billion_tokens_are_answered_at_once_whatever_the_blocks(windows) -> None:
    shape, kv_format = geometry(windows), parse_format("k=int4:channel48,v=int4:channel1009")
    fullest = RowGrowth(shape, kv_format).fullest_length(MOST_TOKENS)
    assert MOST_TOKENS - math.lcm(16, 48, 1009) < fullest <= MOST_TOKENS


def test_r31_a_batch_step_is_named_as_the_limit_where_a_row_more_would_fit() -> None:
    shape, kv_format = geometry(), parse_format("f16")
    row = predict_ledger(shape, kv_format, 64).persistent_nbytes
    found = largest_batch(shape, kv_format, Budget(11 * row + 5), 64, batch_step=4)
    assert (found.batch, found.limit, found.next_batch) == (8, Limit.BATCH_STEP, 12)
    found = largest_batch(shape, kv_format, Budget(8 * row + 5), 64, batch_step=4)
    assert (found.batch, found.limit) == (8, Limit.BUDGET)
    found = largest_batch(shape, kv_format, Budget(3 * row), 64, batch_step=4)
    assert (found.batch, found.limit, found.used_nbytes, found.next_batch) == (0, Limit.BATCH_STEP, 0, 4)


def test_r31_the_models_own_context_bounds_the_second_answer_and_refuses_the_first() -> None:
    shape, kv_format = geometry(max_context=4096), parse_format("int4-g64")
    row = predict_ledger(shape, kv_format, 8192).persistent_nbytes
    found = capacity(shape, kv_format, Budget(row), 4096)
    assert found.context == (4096, Limit.MODEL_CONTEXT, 8192)
    assert found.sequence.tokens == 4096
    small = largest_context(shape, kv_format, Budget(row // 4))
    assert (small.tokens, small.limit) == (2048, Limit.BUDGET)
    with pytest.raises(GeometryError, match=r"--context 4097 is longer than .* own 4096 tokens; use at most"):
        capacity(shape, kv_format, Budget(row), 4097)


def test_r29_weights_and_workspace_inside_the_budget_need_a_known_size() -> None:
    shape, kv_format = geometry(), parse_format("int4-g64")
    with pytest.raises(GeometryError, match="not known"):
        largest_batch(shape, kv_format, Budget(10**9, Holds.EVERYTHING), 64)
    beside = largest_batch(shape, kv_format, Budget(10**8), 1024)
    inside = largest_batch(shape, kv_format, Budget(10**8, Holds.EVERYTHING, 5 * 10**7), 1024)
    assert 0 < inside.batch < beside.batch // 2


@pytest.mark.parametrize("name", [preset.name for preset in PRESETS])
def test_r31_every_named_format_has_a_batch(name) -> None:
    shape, kv_format = geometry(), parse_format(name)
    found = largest_batch(shape, kv_format, Budget(2**28), 300)
    now, one_more = (used_growing_to(shape, kv_format, Budget(1), 300, found.batch + more) for more in (0, 1))
    assert now <= 2**28 < one_more


@given(st.integers(1, 10**30))
@settings(max_examples=20, deadline=None)
def test_r31_budgets_of_any_size_are_answered(nbytes) -> None:
    shape, kv_format = geometry(), parse_format("f16")
    row = predict_ledger(shape, kv_format, 64).persistent_nbytes
    assert largest_batch(shape, kv_format, Budget(nbytes), 64).batch == nbytes // row
