"""The survival curve of agreement."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.stats.survival import agreement_after, agreement_curve, median_divergence

divergences = st.lists(st.integers(0, 31) | st.none(), min_size=1, max_size=40)


@settings(deadline=None)
@given(divergences)
def test_the_curve_is_the_product_limit_estimate(found: list[int | None]) -> None:
    """Kaplan and Meier's product over event times, where nothing is censored before the horizon."""
    share, at_risk = 1.0, len(found)
    product = {0: 1.0}
    for tokens in range(1, 33):
        events = sum(one is not None and one + 1 == tokens for one in found)
        share *= 1 - events / at_risk if at_risk else 1
        at_risk -= events
        product[tokens] = share
    curve = agreement_curve(found, 32, 0.9)
    assert [curve[0].tokens, curve[-1].tokens] == [0, 32]
    for point in curve:
        assert point.share == pytest.approx(product[point.tokens], abs=1e-12)
        assert point.interval.low <= point.share <= point.interval.high
    for before, after in pairwise(curve):
        for tokens in range(before.tokens, after.tokens):
            assert product[tokens] == pytest.approx(before.share, abs=1e-12), "the curve falls only at its steps"


@given(divergences)
def test_the_median_is_where_half_are_left(found: list[int | None]) -> None:
    median = median_divergence(found, 32)
    if median is None:
        assert agreement_after(found, 32, 0.9).share > 0.5
        return
    assert agreement_after(found, median, 0.9).share <= 0.5 < agreement_after(found, median - 1, 0.9).share


def test_outputs_equal_to_the_end_stay_equal() -> None:
    curve = agreement_curve([None, None, 3], 8, 0.9)
    assert [(point.tokens, point.equal) for point in curve] == [(0, 3), (4, 2), (8, 2)]
