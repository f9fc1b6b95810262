"""Against scipy.stats, which the product does not import."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, norm

from kvassay.stats.distributions import (
    binomial_lower_bound,
    binomial_upper_bound,
    normal_quantile,
    normal_upper_tail,
    reproducible,
)


@given(st.floats(0.0005, 0.9995))
def test_normal_quantile(p):
    assert normal_quantile(p) == pytest.approx(norm.ppf(p), rel=1e-11, abs=1e-14)
    assert normal_upper_tail(norm.ppf(1 - p)) == pytest.approx(p, rel=1e-9)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.01, 0.05]))
def test_clopper_pearson(table, alpha):
    events, trials = table
    upper, lower = binomial_upper_bound(events, trials, alpha), binomial_lower_bound(events, trials, alpha)
    assert upper == pytest.approx(beta.ppf(1 - alpha, events + 1, trials - events) if events < trials else 1.0)
    assert lower == pytest.approx(beta.ppf(alpha, events, trials - events + 1) if events else 0.0)
    two_sided = binomtest(events, trials).proportion_ci(1 - 2 * alpha, method="exact")
    assert (lower, upper) == pytest.approx((two_sided.low, two_sided.high))


@pytest.mark.parametrize(
    ("events", "trials", "lower", "upper"),
    [
        (0, 24, 0.0, 0.11734615615494876),
        (3, 24, 0.03495333483371806, 0.2922731965079894),
        (1, 150, 0.000341896835868565, 0.03123381692094288),
    ],
)
def test_clopper_pearson_against_statsmodels(events, trials, lower, upper):
    """statsmodels 0.15.0: proportion_confint(events, trials, alpha=0.1, method="beta")."""
    assert binomial_lower_bound(events, trials, 0.05) == pytest.approx(lower, rel=1e-9)
    assert binomial_upper_bound(events, trials, 0.05) == pytest.approx(upper, rel=1e-9)


def test_rule_of_three():
    assert binomial_upper_bound(0, 24, 0.05) == pytest.approx(1 - 0.05 ** (1 / 24))


@pytest.mark.parametrize(("events", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts(events, trials):
    with pytest.raises(ValueError, match="0 <= events <= trials"):
        binomial_upper_bound(events, trials, 0.05)


def test_reproducible_drops_what_math_libraries_disagree_on():
    assert reproducible(1.6448536269514722) == reproducible(math.nextafter(1.6448536269514722, 2)) == 1.64485362695
    assert reproducible(math.inf) == math.inf


def test_judging_imports_neither_scipy_stats_nor_torch():
    code = "import sys, kvassay.judge; print([m for m in ('scipy.stats', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
