"""The betting e-process: fair, never wrong too often however often it is looked at, and equal to a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.stats.eprocess import FRACTIONS, sequential_pairs, wealth, wealths
from kvassay.stats.sequential_power import MOST_PAIRS, plan_sequential

ALPHA = 0.05
pairs = st.lists(st.sampled_from([-1, 0, 0, 0, 1]), min_size=1, max_size=80).map(np.array)
margins = st.sampled_from([0.01, 0.05, 0.1, 0.3])


@settings(max_examples=25, deadline=None)
@given(pairs, margins)
def test_wealth_is_a_product_of_predictable_bets(differences, margin):
    """The formula of the contract, pair by pair: lambda_t follows from earlier pairs and lies in [0, 1/(1 − m))."""
    capital = [1.0] * len(FRACTIONS)
    product, path = 1.0, wealths(differences, margin)[0]
    for step, d in enumerate(differences.tolist()):
        bet = sum(f / (1 - margin) * c for f, c in zip(FRACTIONS, capital, strict=True)) / sum(capital)
        assert 0 <= bet < 1 / (1 - margin)
        product *= 1 + bet * (d + margin)
        capital = [c * (1 + f / (1 - margin) * (d + margin)) for f, c in zip(FRACTIONS, capital, strict=True)]
        assert path[step] == pytest.approx(product, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(margins, st.floats(0, 1))
def test_one_bet_at_the_margin_is_fair(margin, share):
    """Expected wealth at delta = −m is 1, whatever the discordance: the definition of an e-value."""
    discordance = margin + share * (1 - margin)
    loss, gain = (discordance + margin) / 2, (discordance - margin) / 2
    for side in (0, 1):
        one = [float(wealths(np.array([d]), margin)[side][0]) for d in (-1, 0, 1)]
        assert loss * one[0] + (1 - discordance) * one[1] + gain * one[2] == pytest.approx(1, rel=1e-9)
        assert min(one) >= 0


@settings(max_examples=30, deadline=None)
@given(pairs, margins)
def test_figures_agree_with_the_decision(differences, margin):
    found = sequential_pairs(differences, margin)
    assert -1 <= found.lower <= found.delta <= found.upper <= 1
    assert (found.decision == "met") <= (found.p_met <= ALPHA and found.lower >= -margin)
    assert (found.decision == "breached") <= (found.p_breached <= ALPHA and found.upper <= -margin)
    assert (found.decision is None) == (min(found.p_met, found.p_breached) > ALPHA)
    mirrored = sequential_pairs(-differences, margin)
    assert (mirrored.lower, mirrored.upper) == (-found.upper, -found.lower)


@settings(max_examples=40, deadline=None)
@given(pairs, pairs, margins)
def test_a_decision_is_never_taken_back(first, more, margin):
    """More pairs cannot undo what was decided: that is what makes stopping honest."""
    early, late = sequential_pairs(first, margin), sequential_pairs(np.concatenate([first, more]), margin)
    assert late.p_met <= early.p_met
    assert late.lower >= early.lower
    if early.decision:
        assert (late.decision, late.decided_at) == (early.decision, early.decided_at)


def test_the_most_that_silence_can_prove():
    """No discordant pair: MET needs 40 pairs at 10%, 208 at 2%; with the largest bet alone it would be 29 and 149."""
    for margin, needed in ((0.1, 40), (0.02, 208)):
        assert sequential_pairs(np.zeros(needed, dtype=np.int64), margin).decision == "met"
        assert sequential_pairs(np.zeros(needed - 1, dtype=np.int64), margin).decision is None
        assert needed > math.log(1 / ALPHA) / -math.log1p(-margin)


@pytest.mark.parametrize("arguments", [([], 0.1), ([2], 0.1), ([0], 0.0), ([0], 1.0)])
def test_impossible_pairs_are_refused(arguments):
    with pytest.raises(ValueError, match="need"):
        sequential_pairs(np.array(arguments[0], dtype=np.int64), arguments[1])


def test_wealth_of_many_pairs_does_not_overflow_into_nonsense():
    path = wealth(np.full(200_000, 0.3), 0.7)
    assert path[-1] == np.inf
    assert not np.isnan(path).any()


def runs_at(rng, discordance, delta, count, pairs_each):
    loss, gain = (discordance - delta) / 2, (discordance + delta) / 2
    uniform = rng.random((count, pairs_each))
    return np.where(uniform < loss, -1, np.where(uniform < loss + gain, 1, 0))


@pytest.mark.parametrize(("margin", "discordance"), [(0.1, 0.1), (0.1, 0.25), (0.02, 0.04)])
def test_error_with_a_look_after_every_pair(margin, discordance):
    """CONTRACT: peeking with a fixed-n test gives 27% false PASS; the e-process at most alpha. 2,000 runs of 400."""
    rng = np.random.default_rng(5)
    peaks = [[path.max() for path in wealths(d, margin)] for d in runs_at(rng, discordance, -margin, 2000, 400)]
    met, breached = np.mean(np.array(peaks) >= 1 / ALPHA, axis=0)
    assert met <= 0.05
    assert breached <= 0.05
    assert met + breached > 0.005


@pytest.mark.parametrize(("discordance", "delta"), [(0.05, 0.0), (0.2, 0.02), (0.4, -0.3)])
def test_power_of_the_sequential_plan(discordance, delta):
    """Within 5 points of the plan, and half of the runs decide within its median, on 300 fresh runs."""
    plan = plan_sequential(120, 0.1, discordance, delta)
    side = "met" if delta > -0.1 else "breached"
    fresh = runs_at(np.random.default_rng(9), discordance, delta, 300, 120)
    found = [sequential_pairs(d, 0.1) for d in fresh]
    assert np.mean([one.decision == side for one in found]) == pytest.approx(plan.power, abs=0.05)
    early = np.mean([one.decision == side and one.decided_at <= plan.median for one in found])
    if plan.median <= 120:
        assert early == pytest.approx(0.5, abs=0.1)
    assert plan.pairs >= plan.median


def test_a_plan_that_no_number_of_pairs_serves():
    plan = plan_sequential(100, 0.02, 0.3, -0.019)
    assert plan.pairs is None
    assert plan.power < 0.1
    assert MOST_PAIRS > 1000
