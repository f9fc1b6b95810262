"""Tango's score against published intervals, McNemar's statistic and a direct maximisation of the likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from kvassay.stats.tango import score_statistic, tango_interval

counts = st.integers(5, 200).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda b: st.tuples(st.just(n), st.just(b), st.integers(0, n - b)))
)


@pytest.mark.parametrize(
    ("n", "losses", "gains", "level", "lower", "upper", "digits"),
    [
        # Airway hyper-responsiveness, 21 children: Fagerland, Lydersen, Laake, Stat. Med. 33 (2014) 2850.
        (21, 7, 1, 0.95, -0.517, -0.026, 3),
        # Complete response, 161 patients: R package contingencytables, test of Tango_asymptotic_score_CI_paired_2x2.
        (161, 16, 6, 0.95, -0.1240, -0.0054, 4),
        # R package PropCIs 0.3, scoreci.mp(25, 28, 618, 0.90).
        (618, 25, 28, 0.90, -0.0148, 0.0247, 4),
    ],
)
def test_published_intervals(n, losses, gains, level, lower, upper, digits):
    found = tango_interval(n, losses, gains, alpha=(1 - level) / 2)
    assert round(found.lower, digits) == lower
    assert round(found.upper, digits) == upper


def test_at_zero_difference_it_is_mcnemar():
    assert score_statistic(160, 40, 20, 0.0) == pytest.approx((20 - 40) / math.sqrt(60))
    assert score_statistic(160, 0, 0, 0.0) == 0.0


@pytest.mark.parametrize(("n", "losses", "gains"), [(50, 3, 1), (50, 0, 4), (200, 12, 2), (30, 0, 0), (80, 9, 0)])
@pytest.mark.parametrize("delta", [-0.3, -0.02, 0.01, 0.2])
def test_the_root_maximises_the_likelihood(n, losses, gains, delta):
    """Z with the nuisance parameter found numerically, not by the quadratic."""
    low, high = max(0.0, -delta), (1 - delta) / 2

    def negative_log_likelihood(q):
        terms = ((losses, q), (gains, q + delta), (n - losses - gains, 1 - 2 * q - delta))
        return -sum(k * math.log(max(p, 1e-300)) for k, p in terms if k)

    best = minimize_scalar(negative_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12})
    q = min((low, high, best.x), key=negative_log_likelihood)
    z = (gains - losses - n * delta) / math.sqrt(n * (2 * q + delta - delta * delta))
    assert score_statistic(n, losses, gains, delta) == pytest.approx(z, rel=1e-4, abs=1e-6)


@settings(deadline=None)
@given(counts, st.sampled_from([0.01, 0.05, 0.2]))
def test_ends_solve_the_score_equation_and_enclose_the_estimate(table, alpha):
    n, losses, gains = table
    found = tango_interval(n, losses, gains, alpha)
    delta = (gains - losses) / n
    assert -1 <= found.lower <= delta <= found.upper <= 1
    z = norm.ppf(1 - alpha)
    if found.lower > -1:
        assert score_statistic(n, losses, gains, found.lower) == pytest.approx(z, abs=1e-6)
    if found.upper < 1:
        assert score_statistic(n, losses, gains, found.upper) == pytest.approx(-z, abs=1e-6)


@settings(deadline=None)
@given(counts)
def test_exchanging_the_arms_turns_the_interval_round(table):
    n, losses, gains = table
    found, turned = tango_interval(n, losses, gains, 0.05), tango_interval(n, gains, losses, 0.05)
    assert (found.lower, found.upper) == (-turned.upper, -turned.lower)


@settings(deadline=None)
@given(counts)
def test_one_more_loss_lowers_both_bounds(table):
    n, losses, gains = table
    if losses + gains == n:
        return
    found, worse = tango_interval(n, losses, gains, 0.05), tango_interval(n, losses + 1, gains, 0.05)
    assert worse.lower <= found.lower
    assert worse.upper <= found.upper + 1e-12


@settings(max_examples=50, deadline=None)
@given(counts, st.integers(-500, 500).map(lambda thousandths: thousandths / 1000))
def test_z_falls_as_losses_rise_and_rises_with_gains(table, delta):
    """The order of tables that the exact test relies on."""
    n, losses, gains = table
    if losses + gains == n:
        return
    z = score_statistic(n, losses, gains, delta)
    assert score_statistic(n, losses + 1, gains, delta) <= z + 1e-9
    assert score_statistic(n, losses, gains + 1, delta) >= z - 1e-9


def test_z_is_finite_or_signed_infinite():
    assert score_statistic(10, 0, 0, -1.0) == np.inf
    assert score_statistic(10, 10, 0, -1.0) == 0.0
