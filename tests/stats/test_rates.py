"""Exact and bounded bounds against scipy, and their error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from kvassay.stats.rate_planning import plan_rate, rate_power
from kvassay.stats.rates import binomial_rate, bounded_mean, wilson_interval


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 400))
    return draw(st.integers(0, trials)), trials


@settings(deadline=None, max_examples=40)
@given(counts(), st.floats(0.001, 0.999), st.sampled_from([0.01, 0.05, 0.2]))
def test_a_rate_is_bounded_as_by_scipys_exact_test(found: tuple[int, int], limit: float, alpha: float) -> None:
    events, trials = found
    bound = binomial_rate(events, trials, limit, alpha)
    less, greater = (binomtest(events, trials, limit, side) for side in ("less", "greater"))
    assert bound.p_met == pytest.approx(less.pvalue, rel=1e-6, abs=1e-12)
    assert bound.p_breached == pytest.approx(greater.pvalue, rel=1e-6, abs=1e-12)
    assert bound.upper == pytest.approx(less.proportion_ci(1 - alpha, "exact").high, abs=1e-9)
    assert bound.lower == pytest.approx(greater.proportion_ci(1 - alpha, "exact").low, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(counts(), st.floats(0.01, 0.99))
def test_bounds_and_p_values_agree(found: tuple[int, int], limit: float) -> None:
    bound = binomial_rate(*found, limit, 0.05)
    if abs(bound.upper - limit) > 1e-9:
        assert (bound.upper < limit) == (bound.p_met < 0.05)
    if abs(bound.lower - limit) > 1e-9:
        assert (bound.lower > limit) == (bound.p_breached < 0.05)


def test_no_event_leaves_the_uncertainty_of_n_prompts() -> None:
    """24 equal outputs do not show that fewer than one in ten would differ."""
    assert binomial_rate(0, 24, 0.1, 0.05).upper == pytest.approx(1 - 0.05 ** (1 / 24))
    assert bounded_mean([0.0] * 24, 0.1, 0.05).upper == pytest.approx(1 - 0.05 ** (1 / 24), abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0.02, 0.98))
def test_a_bounded_mean_lies_within_its_bounds_which_agree_with_p(values: list[float], limit: float) -> None:
    bound = bounded_mean(values, limit, 0.05)
    assert 0 <= bound.lower <= bound.estimate + 1e-9
    assert bound.estimate - 1e-9 <= bound.upper <= 1
    if abs(bound.upper - limit) > 1e-6:
        assert (bound.upper < limit) == (bound.p_met < 0.05)
    if abs(bound.lower - limit) > 1e-6:
        assert (bound.lower > limit) == (bound.p_breached < 0.05)


@settings(deadline=None, max_examples=40)
@given(counts())
def test_hoeffdings_bound_is_never_tighter_than_the_exact_one(found: tuple[int, int]) -> None:
    """For zeros and ones both hold, and the one that knows less is wider."""
    events, trials = found
    values = [1.0] * events + [0.0] * (trials - events)
    wide, exact = bounded_mean(values, 0.5, 0.05), binomial_rate(events, trials, 0.5, 0.05)
    assert wide.upper >= exact.upper - 1e-9
    assert wide.lower <= exact.lower + 1e-9


@pytest.mark.parametrize("limit", [0.05, 0.2, 0.6])
def test_error_of_met_and_breached_is_at_most_alpha_by_enumeration(limit: float) -> None:
    for trials in (20, 24, 60):
        chances = binom.pmf(np.arange(trials + 1), trials, limit)
        found = [binomial_rate(events, trials, limit, 0.05) for events in range(trials + 1)]
        assert math.fsum(chances[[bound.upper < limit for bound in found]]) <= 0.05 + 1e-9
        assert math.fsum(chances[[bound.lower > limit for bound in found]]) <= 0.05 + 1e-9


def test_a_rare_edit_is_bounded_where_a_bootstrap_would_be_blind() -> None:
    """One prompt in ten changes, wholly: the mean is 0.1, and with a chance of 8% a sample of 24 shows none of it."""
    rng = np.random.default_rng(5)
    wrong = sum(bounded_mean(list((rng.random(24) < 0.1).astype(float)), 0.1, 0.05).upper < 0.1 for _ in range(4000))
    assert wrong / 4000 <= 0.05


@given(counts())
def test_wilson_is_scipys(found: tuple[int, int]) -> None:
    ours, theirs = wilson_interval(*found, 0.9), binomtest(*found).proportion_ci(0.9, "wilson")
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)
    assert ours.high > ours.low


@pytest.mark.parametrize(("rate", "limit"), [(0.05, 0.2), (0.5, 0.2), (0.9, 0.95)])
def test_power_is_the_chance_of_the_verdict_by_enumeration(rate: float, limit: float) -> None:
    for trials in (24, 100):
        chances = binom.pmf(np.arange(trials + 1), trials, rate)
        found = [binomial_rate(events, trials, limit, 0.05) for events in range(trials + 1)]
        decided = [bound.upper < limit if rate < limit else bound.lower > limit for bound in found]
        assert rate_power(trials, rate, limit, 0.05) == pytest.approx(math.fsum(chances[decided]), abs=1e-9)


def test_planned_prompts_reach_the_power_and_none_do_on_the_limit() -> None:
    planned = plan_rate(0.1, 0.3, 0.05, 0.8)
    assert planned is not None
    power = rate_power(planned, 0.1, 0.3, 0.05)
    assert power is not None
    assert power >= 0.8
    assert plan_rate(0.3, 0.3, 0.05, 0.8) is None
    assert rate_power(24, 0.3, 0.3, 0.05) is None
