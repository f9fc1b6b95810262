"""Power of a clause on a mean over documents: the rule of `cluster` itself, run on simulated lognormal documents.

The normal formula leaves out skew and the lognormal floor, and promises up to 20 points too much for documents with a
coefficient of variation near 1. So samples are drawn with the coefficient of variation that is expected, and
judged. All samples share the resampling weights, which makes one power a few matrix products; that correlates the
Monte Carlo error of the samples and leaves their bounds as they are.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from kvassay.stats.cluster import STRICT_SHARE, bootstrap_level

Floats = NDArray[np.float64]

_SAMPLES = 800
_REPLICATES = 599
_MOST_SIMULATED = 512
"""Beyond, the sample is simulated at this size with the same relative standard error: skew hardly matters by then."""
_SEED = 7


@lru_cache(maxsize=4096)
def simulated_power(documents: int, variation: float, ratio: float, alpha: float, *, above: bool) -> float:
    """Share of samples of `documents` lognormal documents of mean 1 whose bound decides against the limit `ratio`.

    The upper bound must lie below it, or the lower one above it if `above`. Standard error at most 1.8 points.
    """
    size = min(documents, _MOST_SIMULATED)
    values = _samples(size, variation * math.sqrt(size / documents))
    means = values.mean(axis=1)
    deviations = values - means[:, None]
    se = np.sqrt((deviations * deviations).sum(axis=1) / (size - 1) / size)
    weights = _weights(size)
    shifts = deviations @ weights / size
    spreads = np.sqrt(np.maximum((deviations * deviations) @ weights / size - shifts * shifts, 1e-30) / (size - 1))
    level = bootstrap_level(alpha, size)
    if above:
        lower: Floats = means + _smallest(-shifts / spreads, level) * se
        return float(np.count_nonzero(lower > ratio) / len(lower))
    t = shifts / spreads
    upper: Floats = means - _smallest(t, level) * se
    strict: Floats = means - _smallest(t, STRICT_SHARE * level) * se
    return float(np.mean(np.maximum(upper, np.minimum(strict, _lognormal_upper(values, alpha))) < ratio))


def _smallest(t: Floats, level: float) -> Floats:
    """The quantile `level` of every row."""
    rank = max(1, round(level * (t.shape[1] + 1)))
    return np.partition(t, rank - 1, axis=1)[:, rank - 1]


def _lognormal_upper(values: Floats, alpha: float) -> Floats:
    logs, size = np.log(values), values.shape[1]
    variance = logs.var(axis=1, ddof=1)
    se = np.sqrt(variance / size + variance * variance / (2 * (size - 1)))
    return np.exp(logs.mean(axis=1) + variance / 2 + float(stdtrit(size - 1, 1 - alpha)) * se)


def _samples(size: int, variation: float) -> Floats:
    """Lognormal samples `[samples, size]` of mean 1."""
    variance = math.log1p(variation * variation)
    return np.exp(math.sqrt(variance) * _normals(size) - variance / 2)


@lru_cache(maxsize=16)
def _normals(size: int) -> Floats:
    words = np.random.PCG64(_SEED).random_raw(_SAMPLES * size)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(ndtri(uniform), dtype=np.float64).reshape(_SAMPLES, size)


@lru_cache(maxsize=16)
def _weights(size: int) -> Floats:
    """How often each document is drawn, `[size, replicates]`."""
    words = np.random.PCG64(_SEED + 1).random_raw(_REPLICATES * size)
    numbers = (((words >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)).astype(np.int64)
    places = numbers.reshape(_REPLICATES, size) + size * np.arange(_REPLICATES)[:, None]
    counts = np.bincount(places.ravel(), minlength=size * _REPLICATES)
    return np.ascontiguousarray(counts.reshape(_REPLICATES, size).T.astype(np.float64))
