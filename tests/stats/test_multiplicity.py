"""Holm and the fixed sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.stats.multiplicity import fixed_sequence, holm

p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_published_example():
    """R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") gives 0.03 0.06 0.06 0.02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()


def test_holm_against_statsmodels():
    """statsmodels 0.15.0: multipletests([.2, .001, .015, .02, .9], method="holm")."""
    assert holm([0.2, 0.001, 0.015, 0.02, 0.9]) == pytest.approx((0.4, 0.005, 0.06, 0.06, 0.9))


@given(p_lists, st.sampled_from([0.01, 0.05, 0.3]))
def test_holm_rejects_what_the_step_down_rule_rejects(p_values, alpha):
    """The rule as Holm stated it: go up from the smallest, stop at the first above alpha/(remaining)."""
    rejected, order = set(), sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, index in enumerate(order):
        if (len(p_values) - rank) * p_values[index] > alpha:
            break
        rejected.add(index)
    assert {index for index, p in enumerate(holm(p_values)) if p <= alpha} == rejected


@given(p_lists)
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(adjusted)[order]) >= 0)


def test_holm_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="p values"):
        holm([0.1, 1.1])


def test_fixed_sequence_stops_at_the_first_failure():
    assert fixed_sequence([True, True, False, True]) == ((True, True, False, False), 2)
    assert fixed_sequence([True, True]) == ((True, True), None)
    assert fixed_sequence([]) == ((), None)
