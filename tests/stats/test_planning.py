"""n and power before the run, against simulation of the verdict itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.cluster import cluster_bound
from kvassay.stats.planning import documents_power, pairs_power, plan_documents, plan_pairs


def test_pairs_by_the_formula():
    """(z_.95 + z_.8)² = 6.1826; p_d = 5%, delta = 0, m = 2%: 772.8, and twice that at a design effect of 2."""
    assert plan_pairs(0.02, 0.05).by_formula == 773
    assert plan_pairs(0.02, 0.05, design_effect=2.0).by_formula == 1546
    assert plan_pairs(0.02, 0.05, delta=-0.01).by_formula == math.ceil(6.18256 * (0.05 - 0.0001) / 0.0001)


@pytest.mark.parametrize(("margin", "tango", "exact"), [(0.01, 268, 299), (0.02, 133, 149), (0.005, 539, 598)])
def test_pairs_without_discordance(margin, tango, exact):
    plan = plan_pairs(margin, 0.0)
    assert (plan.undiscordant_tango, plan.undiscordant_exact, plan.pairs) == (tango, exact, exact)


def test_no_number_decides_a_difference_on_the_limit_itself():
    assert plan_pairs(0.02, 0.05, delta=-0.02).pairs is None
    assert plan_documents(0.02, 0.5, 0.02).documents is None


@pytest.mark.parametrize(("margin", "discordance", "delta"), [(0.05, 0.05, 0.0), (0.1, 0.1, 0.0), (0.1, 0.2, -0.02)])
def test_planned_pairs_reach_the_power_asked_for(margin, discordance, delta):
    plan = plan_pairs(margin, discordance, delta, power=0.8)
    assert 0.8 <= pairs_power(plan.pairs, margin, discordance, delta) <= 0.85
    assert plan.pairs >= plan.by_formula


def test_power_of_pairs_is_what_a_simulation_finds():
    n, margin, loss, gain = 120, 0.05, 0.02, 0.02
    rng = np.random.default_rng(1)
    tables, repeats = np.unique(
        rng.multinomial(n, [loss, gain, 1 - loss - gain], size=3000)[:, :2], axis=0, return_counts=True
    )
    met = sum(
        int(k)
        for (b, c), k in zip(tables, repeats, strict=True)
        if paired_noninferiority(n, int(b), int(c), margin).lower > -margin
    )
    assert pairs_power(n, margin, loss + gain, gain - loss) == pytest.approx(met / 3000, abs=0.025)


def test_power_of_a_breach_by_pairs_is_what_a_simulation_finds():
    n, margin, loss, gain = 80, 0.05, 0.20, 0.02
    rng = np.random.default_rng(4)
    tables, repeats = np.unique(
        rng.multinomial(n, [loss, gain, 1 - loss - gain], size=3000)[:, :2], axis=0, return_counts=True
    )
    breached = sum(
        int(k)
        for (b, c), k in zip(tables, repeats, strict=True)
        if paired_noninferiority(n, int(b), int(c), margin).upper < -margin
    )
    assert pairs_power(n, margin, loss + gain, gain - loss) == pytest.approx(breached / 3000, abs=0.025)
    needed = plan_pairs(margin, loss + gain, gain - loss, power=0.8).pairs
    assert 0.8 <= pairs_power(needed, margin, loss + gain, gain - loss) <= 0.87


def test_power_grows_with_pairs_and_falls_with_the_design_effect():
    powers = [pairs_power(n, 0.05, 0.05) for n in (60, 120, 240)]
    assert powers == sorted(powers)
    assert pairs_power(240, 0.05, 0.05, design_effect=2.0) == pytest.approx(powers[1])


def test_documents_by_the_formula():
    """mu = 0.008, CV = 1, limit 0.01: ((1.645 + 0.842)·4)² = 98.9; skew and the lognormal floor add to it."""
    plan = plan_documents(0.008, 1.0, 0.01)
    assert plan.by_formula == 99
    assert 99 < plan.documents < 180
    assert documents_power(plan.documents, 0.008, 1.0, 0.01) >= 0.8
    assert documents_power(plan.documents - 1, 0.008, 1.0, 0.01) < 0.8


def test_never_fewer_than_twenty_documents():
    assert plan_documents(0.0001, 0.5, 0.01).documents == 20
    assert documents_power(19, 0.0001, 0.5, 0.01) == 0.0
    assert documents_power(24, 0.0, 0.0, 0.01) == 1.0


@pytest.mark.parametrize(
    ("count", "mean", "variation"), [(30, 0.008, 0.4), (24, 0.007, 0.4), (60, 0.007, 1.0), (40, 0.0085, 0.3)]
)
def test_power_of_documents_is_what_a_simulation_finds(count, mean, variation):
    """Lognormal documents under a limit of 0.01, 600 runs of the verdict's own bound: within 5 points."""
    sigma = math.sqrt(math.log1p(variation**2))
    draws = mean * np.exp(np.random.default_rng(2).normal(-sigma * sigma / 2, sigma, (600, count)))
    ones = np.ones(count)
    met = sum(cluster_bound(draws[k], ones, 0.01, replicates=2000, seed=k).upper < 0.01 for k in range(600))
    assert documents_power(count, mean, variation, 0.01) == pytest.approx(met / 600, abs=0.05)


def test_beyond_the_simulated_size_power_still_rises_and_the_plan_is_never_below_the_formula():
    powers = [documents_power(count, 0.0097, 1.0, 0.01) for count in (500, 2000, 8000, 32_000)]
    assert powers == sorted(powers)
    assert powers[-1] > 0.99
    plan = plan_documents(0.0097, 1.0, 0.01)
    assert plan.by_formula <= plan.documents < 1.1 * plan.by_formula


def test_power_of_a_breach_turns_the_signs():
    """A mean of 0.013 over a limit of 0.01; skew to the right raises the lower bound less than the upper."""
    rng = np.random.default_rng(3)
    draws = 0.013 * rng.gamma(6.0, 1 / 6, (1000, 30))
    breached = sum(
        cluster_bound(draws[k], np.ones(30), 0.01, replicates=1000, seed=k).lower > 0.01 for k in range(1000)
    )
    planned = documents_power(30, -0.013, 1 / math.sqrt(6), -0.01)
    assert planned == pytest.approx(breached / 1000, abs=0.05)


@pytest.mark.parametrize("arguments", [(0.0, 0.1), (0.1, 0.1, 0.2), (0.1, 1.5)])
def test_impossible_plans_of_pairs(arguments):
    with pytest.raises(ValueError, match="need"):
        plan_pairs(*arguments)
