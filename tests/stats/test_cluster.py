"""Ratio estimate, bootstrap-t over documents and design effect."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.stats.cluster import STRICT_SHARE, bootstrap_level, cluster_bound, design_effect, document_sums
from kvassay.stats.lognormal import log_mean

ALPHA = 0.05


def documents(rng, count=24, tokens=64, document_sigma=0.4, token_sigma=1.5):
    """Lognormal token values with lognormal documents; the true mean is 1."""
    levels = rng.normal(0, document_sigma, (count, 1)) - document_sigma**2 / 2
    return np.exp(levels + rng.normal(0, token_sigma, (count, tokens)) - token_sigma**2 / 2)


def bound(values, limit=1.0, **options):
    return cluster_bound(values.sum(axis=1), np.full(len(values), values.shape[1]), limit, **options)


def test_estimate_and_standard_error_by_hand():
    sums, counts = [3.0, 1.0, 8.0], [2, 1, 3]
    found = cluster_bound(sums, counts, 1.0)
    theta = 12 / 6
    residuals = [3 - theta * 2, 1 - theta * 1, 8 - theta * 3]
    assert found.estimate == theta
    assert found.se == pytest.approx(math.sqrt(3 / 2 * sum(e * e for e in residuals)) / 6)


def test_equal_documents_reduce_to_the_standard_error_of_a_mean():
    """With equal lengths the linearised error is the textbook one of the document means."""
    values = documents(np.random.default_rng(1))
    means = values.mean(axis=1)
    assert bound(values).se == pytest.approx(np.std(means, ddof=1) / math.sqrt(len(means)))


def test_bounds_against_a_plain_loop():
    """An independent bootstrap-t: Python's own generator, one replicate at a time."""
    values = documents(np.random.default_rng(5))
    sums, counts = values.sum(axis=1), np.full(24, 64.0)
    estimate = sums.sum() / counts.sum()

    def error(drawn_sums, drawn_counts, mean):
        residuals = drawn_sums - mean * drawn_counts
        return math.sqrt(24 / 23 * (residuals**2).sum()) / drawn_counts.sum()

    generator, t = random.Random(3), []
    for _ in range(20_000):
        draw = [generator.randrange(24) for _ in range(24)]
        mean = sums[draw].sum() / counts[draw].sum()
        t.append((mean - estimate) / error(sums[draw], counts[draw], mean))
    se, level = error(sums, counts, estimate), bootstrap_level(ALPHA, 24)
    found = bound(values, replicates=20_000)
    assert found.upper == pytest.approx(estimate - np.quantile(t, level) * se, rel=0.03)
    assert found.lower == pytest.approx(estimate - np.quantile(t, 1 - level) * se, rel=0.03)


@pytest.mark.parametrize("count", [1, 2, 19])
def test_too_few_documents_give_an_estimate_and_no_bound(count):
    found = bound(documents(np.random.default_rng(2), count=count))
    assert (found.lower, found.upper, found.p_met, found.p_breached) == (None, None, None, None)
    assert found.documents == count
    assert math.isfinite(found.estimate)


def test_a_contract_may_ask_for_more_documents_but_not_for_fewer():
    values = documents(np.random.default_rng(2), count=24)
    assert bound(values, minimum_documents=30).upper is None
    assert bound(values[:19], minimum_documents=5).upper is None


@pytest.mark.parametrize("value", [0.0, 0.1, 3.7])
def test_no_spread_is_said(value):
    found = bound(np.full((24, 64), value))
    assert found.degenerate
    assert found.lower == found.upper == found.estimate == pytest.approx(value)
    assert not bound(documents(np.random.default_rng(1))).degenerate


def test_one_document_with_everything_has_no_upper_bound():
    """A third of the replicates miss the document and show no spread: nothing bounds the mean from above."""
    values = np.zeros((24, 64))
    values[3, 5] = 0.2
    found = bound(values, limit=0.01)
    assert found.upper == math.inf
    assert found.p_met > 0.3


def test_too_few_replicates_for_an_alpha_bound_nothing():
    """200 replicates cannot show an error of 1%, whatever they say; the p value agrees."""
    found = bound(documents(np.random.default_rng(1)), limit=100.0, alpha=0.01, replicates=200)
    assert (found.lower, found.upper) == (-math.inf, math.inf)
    assert found.p_met > 0.01


def test_fewer_replicates_never_give_a_tighter_bound_on_average():
    """The Monte Carlo error of the rank goes to the safe side."""
    values = documents(np.random.default_rng(1))
    few = np.mean([bound(values, replicates=200, seed=seed).upper for seed in range(200)])
    assert few > bound(values, replicates=50_000).upper


def test_same_seed_same_bits_and_the_order_of_documents_does_not_matter():
    values = documents(np.random.default_rng(8))
    shuffled = values[np.random.default_rng(0).permutation(24)]
    assert bound(values) == bound(values) == bound(shuffled)
    assert bound(values) != bound(values, seed=8)


def test_pieces_of_replicates_do_not_change_the_result(monkeypatch):
    values = documents(np.random.default_rng(8))
    whole = bound(values)
    monkeypatch.setattr("kvassay.stats.cluster._CELLS_AT_ONCE", 24 * 7)
    assert bound(values) == whole


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.5, 2.0))
def test_bounds_enclose_the_estimate_and_agree_with_the_p_values(seed, limit):
    values = documents(np.random.default_rng(seed))
    found = bound(values, limit=limit, replicates=400)
    assert found.lower < found.estimate < found.upper
    assert (found.upper < limit) == (found.p_met <= ALPHA)
    assert (found.lower > limit) == (found.p_breached <= ALPHA)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 50.0), st.floats(-3, 3))
def test_scaling_the_values_scales_the_bounds_and_shifting_them_shifts_the_bootstrap(seed, scale, shift):
    """The lognormal floor knows where zero is, so a shift moves only bounds without it."""
    values = documents(np.random.default_rng(seed))
    found, scaled = bound(values, replicates=400), bound(scale * values, replicates=400)
    moved = bound(values + shift, replicates=400)
    assert scaled.upper == pytest.approx(scale * found.upper, rel=1e-6)
    assert scaled.lower == pytest.approx(scale * found.lower, rel=1e-6)
    assert moved.lower == pytest.approx(found.lower + shift, rel=1e-6, abs=1e-9)
    if not (found.floored or moved.floored):
        assert moved.upper == pytest.approx(found.upper + shift, rel=1e-6, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 1.5))
def test_the_lognormal_floor_only_raises_and_never_beyond_a_fifth_of_the_level(seed, sigma):
    values = documents(np.random.default_rng(seed), document_sigma=sigma, tokens=4)
    found, shifted = bound(values, replicates=2000), bound(values - values.max(), replicates=2000)
    plain = shifted.upper + values.max()  # no lognormal holds values below zero, so this is the bootstrap-t alone
    strict = bound(values - values.max(), replicates=2000, alpha=STRICT_SHARE * ALPHA).upper + values.max()
    model = log_mean(values.mean(axis=1)).upper(ALPHA)
    assert found.upper == pytest.approx(max(plain, min(model, strict)), rel=1e-6)
    assert found.floored == (found.upper > plain * (1 + 1e-9))


def test_document_sums_are_exact_and_by_code():
    values, codes = np.array([1e16, 1.0, -1e16, 5.0]), np.array([4, 4, 4, 2])
    sums, counts = document_sums(values, codes)
    assert sums.tolist() == [5.0, 1.0]
    assert counts.tolist() == [1, 3]


@pytest.mark.parametrize(("sums", "counts"), [([], []), ([1.0], [1, 2]), ([math.nan, 1.0], [1, 1]), ([1.0], [0])])
def test_unusable_sums_are_refused(sums, counts):
    with pytest.raises(ValueError, match=r"document|equally"):
        cluster_bound(sums, counts, 1.0)


def test_design_effect_is_one_for_independent_tokens_and_the_size_for_constant_documents():
    rng = np.random.default_rng(4)
    codes = np.repeat(np.arange(200), 50)
    assert design_effect(rng.normal(size=10_000), codes) == pytest.approx(1, abs=0.25)
    assert design_effect(np.repeat(rng.normal(size=200), 50), codes) == pytest.approx(50, rel=0.02)
    assert design_effect(np.zeros(100), np.repeat(np.arange(2), 50)) is None
    assert design_effect(np.ones(3), np.zeros(3, dtype=np.int64)) is None


def test_a_naive_token_error_would_be_far_too_small():
    """CONTRACT: token errors cluster; an i.i.d. standard error covers the truth far too seldom."""
    rng, missed, missed_naively = np.random.default_rng(6), 0, 0
    for seed in range(300):
        values = documents(rng, tokens=256)
        found = bound(values, seed=seed)
        naive = values.mean() + 1.645 * values.std() / math.sqrt(values.size)
        missed += found.upper < 1
        missed_naively += naive < 1
    assert missed / 300 < 0.09
    assert missed_naively / 300 > 0.15
