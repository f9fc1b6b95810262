"""McNemar's mid-p and the sign permutation test against independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, permutation_test

from kvassay.stats.mcnemar import mcnemar_mid_p
from kvassay.stats.permutation import sign_permutation_p


@pytest.mark.parametrize(
    ("losses", "gains", "p"),
    [
        # Fagerland, Lydersen, Laake, BMC Med. Res. Methodol. 13 (2013) 91: airways of children, complete response.
        (7, 1, 0.039),
        (16, 6, 0.035),
    ],
)
def test_published_mid_p_values(losses, gains, p):
    assert round(mcnemar_mid_p(losses, gains), 3) == p


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_mid_p_lies_half_the_observed_table_below_the_exact_test_of_scipy(losses, gains):
    found = mcnemar_mid_p(losses, gains)
    if losses + gains == 0:
        assert found is None
        return
    exact = binomtest(losses, losses + gains).pvalue
    point = binom.pmf(losses, losses + gains, 0.5)
    assert found == pytest.approx(exact - (point / 2 if losses == gains else point), rel=1e-8)
    assert found == mcnemar_mid_p(gains, losses)


@pytest.mark.parametrize(
    ("losses", "gains", "exact"), [(7, 1, 0.0703125), (16, 6, 0.052478790283203125), (0, 5, 0.0625)]
)
def test_mid_p_against_statsmodels(losses, gains, exact):
    """Exact p values of statsmodels 0.15.0, mcnemar(exact=True); mid-p takes the observed table off."""
    assert mcnemar_mid_p(losses, gains) == pytest.approx(exact - binom.pmf(losses, losses + gains, 0.5), rel=1e-8)


@pytest.mark.parametrize("discordance", [0.2, 0.5])
def test_error_of_mid_p_stays_near_its_level(discordance):
    """Enumerated over all tables of 60 pairs: at most 5.5% at a nominal 5%."""
    error = sum(
        binom.pmf(n, 60, discordance) * binom.pmf(b, n, 0.5)
        for n in range(1, 61)
        for b in range(n + 1)
        if mcnemar_mid_p(b, n - b) <= 0.05
    )
    assert 0.02 < error < 0.055


@pytest.mark.parametrize("size", [6, 12])
def test_all_sign_changes_against_scipy(size):
    differences = np.random.default_rng(size).normal(0.4, 1, size)
    exact = permutation_test(
        (differences, np.zeros(size)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=np.inf,
    )  # fmt: skip
    assert sign_permutation_p(differences, 7) == pytest.approx(exact.pvalue, rel=1e-8)


def test_drawn_sign_changes_come_near_scipys():
    differences = np.random.default_rng(3).normal(0.25, 1, 24)
    drawn = permutation_test(
        (differences, np.zeros(24)), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        vectorized=True, n_resamples=50_000, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert sign_permutation_p(differences, 7) == pytest.approx(drawn.pvalue, abs=0.012)
    assert sign_permutation_p(differences, 7) == sign_permutation_p(differences[::-1], 7)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 3)), min_size=1, max_size=10), st.floats(0.5, 4))
def test_a_permutation_p_is_symmetric_scale_free_and_never_zero(differences, scale):
    values = np.array(differences)
    found = sign_permutation_p(values, 7)
    if not values.any():
        assert found is None
        return
    assert 0 < found <= 1
    assert found == sign_permutation_p(-values, 7)
    assert found == pytest.approx(sign_permutation_p(scale * values, 7))


def test_error_of_the_permutation_test_stays_at_its_level():
    rng = np.random.default_rng(1)
    rejected = sum(sign_permutation_p(rng.standard_t(3, 10), 7) <= 0.05 for _ in range(2000))
    assert 0.03 < rejected / 2000 < 0.065
