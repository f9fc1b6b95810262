"""Paired non-inferiority: the exact floor, its sizes, and its error by full enumeration and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, multinomial, norm

from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.planning import pairs_power
from kvassay.stats.tango import score_statistic
from kvassay.stats.unconditional import exact_p_values, least_gains, region_probability

ALPHA = 0.05


def is_met(result) -> bool:
    return result.lower > -result.margin


def is_breached(result) -> bool:
    return result.upper < -result.margin


@pytest.mark.parametrize(
    ("margin", "tango", "exact"), [(0.01, 268, 299), (0.02, 133, 149), (0.005, 539, 598)], ids=["1%", "2%", "0.5%"]
)
def test_sizes_without_a_discordant_pair(margin, tango, exact):
    """CONTRACT: no discordant pair, MET needs n = 268 (Tango) and 299 (exact) at 1%, 133/149 at 2%, 539/598 at 0.5%."""
    for n, of_tango, of_both in ((tango - 1, False, False), (tango, True, False), (exact - 1, True, False)):
        result = paired_noninferiority(n, 0, 0, margin)
        assert (result.tango_lower > -margin) is of_tango
        assert is_met(result) is of_both
        assert result.exact_decides_met is (of_tango and not of_both)
    assert is_met(paired_noninferiority(exact, 0, 0, margin))


@pytest.mark.parametrize("n", [1, 3])
def test_false_pass_one_or_three_items_without_discordance(n):
    """CONTRACT: n = 1 or n = 3 with no discordance at margin 1% is not MET."""
    result = paired_noninferiority(n, 0, 0, 0.01)
    assert not is_met(result)
    assert not is_breached(result)
    assert result.p_met > 0.9


def test_without_discordance_the_exact_p_is_clopper_pearson():
    for n, margin in ((30, 0.05), (149, 0.02), (299, 0.01)):
        assert paired_noninferiority(n, 0, 0, margin).exact_p_met == pytest.approx((1 - margin) ** n, rel=1e-8)


@pytest.mark.parametrize(("n", "losses", "gains"), [(12, 1, 0), (15, 0, 2), (15, 5, 1), (20, 2, 2)])
@pytest.mark.parametrize("delta", [-0.1, 0.05])
def test_exact_p_against_enumeration_with_scipy(n, losses, gains, delta):
    """Every table by `scipy.stats.multinomial`, the nuisance parameter on a fine grid."""
    observed = score_statistic(n, losses, gains, delta)
    tables = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    z = np.array([score_statistic(n, b, c, delta) for b, c in tables])
    large, small = 0.0, 0.0
    for q in np.linspace(max(0.0, -delta), (1 - delta) / 2, 400):
        p = np.clip([q, q + delta, 1 - 2 * q - delta], 0, 1)
        mass = multinomial(n, p).pmf([(b, c, n - b - c) for b, c in tables])
        large, small = max(large, mass[z >= observed - 1e-9].sum()), max(small, mass[z <= observed + 1e-9].sum())
    found = exact_p_values(n, losses, gains, delta)
    assert found.noninferior == pytest.approx(large, abs=1e-3)
    assert found.inferior == pytest.approx(small, abs=1e-3)
    assert found.noninferior >= large - 1e-6
    assert found.inferior >= small - 1e-6


def test_region_probability_is_one_for_the_whole_space():
    n = 40
    whole, none = np.zeros(n + 1, dtype=np.int64), n + 1 - np.arange(n + 1)
    assert region_probability(n, 0.3, -0.1, whole) == pytest.approx(1)
    assert region_probability(n, 0.3, -0.1, none) == pytest.approx(0, abs=1e-15)
    assert region_probability(n, 0.3, -0.1, none, below=True) == pytest.approx(1)
    few_losses = np.where(np.arange(n + 1) <= 5, 0, none)
    assert region_probability(n, 0.2, 0.1, few_losses) == pytest.approx(binom.cdf(5, n, 0.2))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 120), st.data(), st.sampled_from([0.01, 0.05, 0.1]))
def test_bounds_agree_with_the_decision_and_with_both_p_values(n, data, margin):
    losses = data.draw(st.integers(0, n))
    gains = data.draw(st.integers(0, n - losses))
    result = paired_noninferiority(n, losses, gains, margin)
    assert result.lower <= result.delta <= result.upper
    assert result.lower <= result.tango_lower + 1e-12
    assert result.upper >= result.tango_upper - 1e-12
    assert is_met(result) == (result.p_met <= ALPHA)
    assert is_breached(result) == (result.p_breached <= ALPHA)
    assert not (is_met(result) and is_breached(result))


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 150), st.data(), st.sampled_from([0.02, 0.1]))
def test_one_more_loss_is_never_better(n, data, margin):
    losses = data.draw(st.integers(0, n - 1))
    gains = data.draw(st.integers(0, n - 1 - losses))
    better = paired_noninferiority(n, losses, gains, margin)
    worse = paired_noninferiority(n, losses + 1, gains, margin)
    assert worse.p_met >= better.p_met - 1e-9
    assert not (is_met(worse) and not is_met(better))
    assert not (is_breached(better) and not is_breached(worse))


@pytest.mark.parametrize("arguments", [(0, 0, 0, 0.1), (5, 4, 2, 0.1), (5, -1, 0, 0.1), (5, 0, 0, 0.0), (5, 0, 0, 1.0)])
def test_impossible_counts_and_margins_are_refused(arguments):
    with pytest.raises(ValueError, match="need"):
        paired_noninferiority(*arguments)


@pytest.mark.parametrize(("n", "margin"), [(50, 0.02), (64, 0.05), (150, 0.02), (268, 0.01), (300, 0.01)])
def test_error_of_met_is_at_most_alpha_by_enumeration(n, margin):
    """Probability of MET with delta exactly at −margin, over the whole range of discordance."""
    discordances = (margin, 1.2 * margin, 2 * margin, 0.1 + margin, 0.3, 0.6, 1.0)
    assert max(pairs_power(n, margin, p_d, -margin) for p_d in discordances) <= ALPHA + 1e-6


@pytest.mark.parametrize(("n", "margin"), [(150, 0.02), (300, 0.01), (448, 0.005)])
def test_tango_alone_breaches_too_often_and_the_floor_mends_it(n, margin):
    """Why BREACHED needs the exact floor too: rare discordance, delta at −margin."""
    z = norm.ppf(1 - ALPHA)
    region = least_gains(n, -margin, -z + 1e-9)
    worst = max(region_probability(n, q, -margin, region, below=True) for q in margin * np.linspace(1, 2.5, 60))
    assert worst > 0.08
    for losses in range(1, 10):
        result = paired_noninferiority(n, losses, 0, margin)
        if is_breached(result):
            assert binom.sf(losses - 1, n, margin) <= ALPHA
            return
    pytest.fail("ten losses of this many must breach")


@pytest.mark.parametrize(
    ("n", "margin", "discordance"), [(50, 0.05, 0.08), (100, 0.02, 0.03), (150, 0.02, 0.06), (300, 0.01, 0.02)]
)
def test_simulated_error_at_the_boundary(n, margin, discordance):
    """Seeded simulation of whole tables: MET and BREACHED each at most 7% at nominal 5% (2,000 runs)."""
    rng = np.random.default_rng(n)
    loss = (discordance + margin) / 2
    tables, repeats = np.unique(
        rng.multinomial(n, [loss, discordance - loss, 1 - discordance], size=2000)[:, :2], axis=0, return_counts=True
    )
    results = [paired_noninferiority(n, int(b), int(c), margin) for b, c in tables]
    met = sum(k for result, k in zip(results, repeats, strict=True) if is_met(result)) / 2000
    breached = sum(k for result, k in zip(results, repeats, strict=True) if is_breached(result)) / 2000
    assert met <= 0.07
    assert breached <= 0.07
    assert met + breached > 0.01 or (1 - margin) ** n > ALPHA


def test_it_can_say_met_and_breached():
    assert is_met(paired_noninferiority(400, 3, 3, 0.02))
    assert is_breached(paired_noninferiority(150, 40, 1, 0.02))
    assert math.isclose(paired_noninferiority(400, 3, 3, 0.02).delta, 0.0)
