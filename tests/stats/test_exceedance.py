"""Share of tokens beyond a threshold: rare events must not give a zero-wide interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom

from kvassay.stats.cluster import cluster_bound
from kvassay.stats.distributions import binomial_upper_bound
from kvassay.stats.exceedance import exceedance_bound

TAU = 0.1
CODES = np.repeat(np.arange(24), 256)


def values_with(rng, rate, document_sigma=0.5, token_sigma=1.5):
    """Lognormal values of 24 documents whose true exceedance of TAU is `rate`."""
    spread = np.hypot(document_sigma, token_sigma)
    logs = rng.normal(0, document_sigma, (24, 1)) + rng.normal(0, token_sigma, (24, 256))
    return TAU * np.exp(logs - spread * ndtri(1 - rate)).ravel()


def test_many_events_use_the_cluster_estimator_itself():
    values = values_with(np.random.default_rng(1), 0.05)
    found = exceedance_bound(values, CODES, TAU, 0.05)
    events = (values > TAU).reshape(24, 256).sum(axis=1)
    same = cluster_bound(events, np.full(24, 256), 0.05)
    assert found.method == "bootstrap-t"
    assert (found.lower, found.upper, found.p_met) == (same.lower, same.upper, same.p_met)
    assert found.events == events.sum()


def test_no_event_is_not_a_zero_wide_interval():
    rng = np.random.default_rng(2)
    near_misses = TAU * rng.uniform(0.5, 0.99, CODES.size)
    far_below = TAU * rng.uniform(0.001, 0.02, CODES.size)
    near, far = (exceedance_bound(values, CODES, TAU, 0.01) for values in (near_misses, far_below))
    assert near.events == far.events == 0
    assert near.estimate == far.estimate == far.lower == 0
    assert near.method == far.method == "second-moment"
    assert near.upper > 0.5, "near misses prove little"
    assert 0 < far.upper < 0.01


@pytest.mark.parametrize("limit", [0.001, 0.01, 0.1])
def test_false_pass_all_values_zero_or_equal(limit):
    """Zero spread everywhere: only whole documents count, so 24 of them exclude a share of 11.7%, not less."""
    for values in (np.zeros(CODES.size), np.full(CODES.size, 0.05)):
        found = exceedance_bound(values, CODES, TAU, limit)
        assert found.method == "documents"
        assert found.upper == binomial_upper_bound(0, 24, 0.05) == pytest.approx(0.117, abs=1e-3)
        assert found.upper > limit
        assert found.p_met == pytest.approx((1 - limit) ** 24)


def test_everything_beyond_the_threshold_is_a_breach():
    found = exceedance_bound(np.full(CODES.size, 1.0), CODES, TAU, 0.01)
    assert found.estimate == 1
    assert found.lower == pytest.approx(0.05 ** (1 / 24))
    assert found.p_breached < 1e-9


def test_one_ruined_document_is_neither_met_nor_breached():
    values = np.full((24, 256), 1e-4)
    values *= np.random.default_rng(0).uniform(0.5, 1.5, values.shape)
    values[7] = 1.0
    found = exceedance_bound(values.ravel(), CODES, TAU, 0.01)
    assert found.estimate > 0.04
    assert found.lower < 0.01 < found.upper
    assert found.p_breached == pytest.approx(1 - binom.cdf(0, 24, 0.01))


def test_the_substitute_never_lies_below_the_rate():
    rng = np.random.default_rng(3)
    for rate in (1e-5, 1e-4, 1e-3):
        for _ in range(20):
            found = exceedance_bound(values_with(rng, rate), CODES, TAU, 0.01, replicates=400)
            assert found.lower <= found.estimate <= found.upper


def test_too_few_documents():
    found = exceedance_bound(np.zeros(10), np.arange(10), TAU, 0.01)
    assert (found.lower, found.upper, found.p_met) == (None, None, None)


@pytest.mark.parametrize(("tau", "limit"), [(0.0, 0.1), (0.1, 0.0), (0.1, 1.0)])
def test_impossible_thresholds(tau, limit):
    with pytest.raises(ValueError, match="tau > 0"):
        exceedance_bound(np.zeros(10), np.arange(10), tau, limit)


@pytest.mark.parametrize(("limit", "document_sigma"), [(0.001, 0.6), (0.003, 0.6), (0.01, 0.5), (0.05, 0.5)])
def test_simulated_error_at_the_limit(limit, document_sigma):
    """600 seeded runs, 24 documents, the true rate at the limit: MET and BREACHED each at most 7%."""
    rng, met, breached = np.random.default_rng(21), 0, 0
    for seed in range(600):
        values = values_with(rng, limit, document_sigma)
        found = exceedance_bound(values, CODES, TAU, limit, replicates=500, seed=seed)
        met += found.upper < limit
        breached += found.lower > limit
    assert met / 600 <= 0.07
    assert breached / 600 <= 0.07


def test_it_has_power_where_events_are_rare():
    """A twentieth of the limit is usually shown with 24 documents, though only a few of them have an event."""
    rng = np.random.default_rng(22)
    met = sum(
        exceedance_bound(values_with(rng, 0.0005), CODES, TAU, 0.01, replicates=500).upper < 0.01 for _ in range(100)
    )
    assert met >= 80


def flips(rng: np.random.Generator, rate: float, sigma: float) -> np.ndarray:
    """0 or 1 by position, whose rate differs by document."""
    rates = np.minimum(1, rate * np.exp(rng.normal(0, sigma, 24) - sigma**2 / 2))
    return (rng.random((24, CODES.size // 24)) < rates[:, None]).astype(np.float64).ravel()


@pytest.mark.parametrize(("limit", "sigma"), [(0.001, 0.5), (0.002, 0.7), (0.003, 0.7), (0.003, 1.0), (0.01, 0.5)])
def test_simulated_error_of_a_share_of_flips(limit, sigma):
    """600 seeded runs, 24 documents, the true rate at the limit: MET and BREACHED each at most 7%."""
    rng, met, breached, methods = np.random.default_rng(23), 0, 0, set()
    for seed in range(600):
        found = exceedance_bound(flips(rng, limit, sigma), CODES, 0.5, limit, replicates=500, seed=seed, binary=True)
        met += found.upper < limit
        breached += found.lower > limit
        methods.add(found.method)
    assert met / 600 <= 0.07
    assert breached / 600 <= 0.07
    assert "filled" in methods or limit > 0.003


def test_without_a_flip_ten_are_counted_and_no_more():
    none = exceedance_bound(np.zeros(CODES.size), CODES, 0.5, 0.01, binary=True)
    assert (none.estimate, none.lower, none.events, none.method) == (0, 0, 0, "filled")
    assert 10 / CODES.size < none.upper < 2 * 10 / CODES.size
    assert none.p_met < 0.05


@pytest.mark.parametrize("with_events", range(12))
def test_more_documents_with_a_flip_never_lower_the_bound_of_flips(with_events):
    def upper(documents: int) -> float:
        values = np.zeros((24, CODES.size // 24))
        values[:documents, 0] = 1
        return exceedance_bound(values.ravel(), CODES, 0.5, 0.02, binary=True).upper

    assert upper(with_events) <= upper(with_events + 1)
