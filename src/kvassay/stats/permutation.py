"""Paired permutation test of a mean over clusters: descriptive beside a verdict.

If reference and candidate were exchangeable within a document, every document's difference could as well have the
other sign. The p value is the share of sign changes whose mean lies at least as far from zero (R. A. Fisher, The
Design of Experiments, 1935, section 21). All 2^D are enumerated up to 16 documents; beyond, seeded draws stand for
them, and the observed signs count as one, so that p is never zero (B. Phipson and G. Smyth, Statistical Applications
in Genetics and Molecular Biology 9 (2010) 39). It asks whether anything changed at all; no verdict rests on it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvassay.stats.distributions import reproducible

Floats = NDArray[np.float64]

_ENUMERATED = 16
_DRAWS = 9_999
_DIGITS = 9
_TIE = 1e-12
"""Sums whose relative difference is below this are equal up to rounding."""


def sign_permutation_p(differences: Floats, seed: int) -> float | None:
    """Two-sided p value of the differences' mean `[clusters]`; None where all are zero."""
    size = len(differences)
    values = np.sort(np.abs(differences))
    if size == 0 or float(values[-1]) == 0:
        return None
    observed = abs(math.fsum(differences.tolist())) - _TIE * math.fsum(values.tolist())
    if size <= _ENUMERATED:
        codes = np.arange(1 << size)
        extreme = np.count_nonzero(_sums(values, (codes[:, None] >> np.arange(size)) & 1) >= observed)
        return reproducible(float(extreme) / (1 << size), _DIGITS)
    words = np.random.PCG64(seed).random_raw(_DRAWS * size)
    flips = (words >> np.uint64(63)).astype(np.int64).reshape(_DRAWS, size)
    extreme = np.count_nonzero(_sums(values, flips) >= observed)
    return reproducible((1 + float(extreme)) / (1 + _DRAWS), _DIGITS)


def _sums(values: Floats, flips: NDArray[np.int64]) -> Floats:
    """|sum| for each row of flips, added document by document, without BLAS, so that equal rows give equal bits."""
    total: Floats = np.zeros(len(flips), dtype=np.float64)
    for value, column in zip(values.tolist(), flips.T, strict=True):
        total = np.add(total, value * (1.0 - 2.0 * column.astype(np.float64)))  # exact: the factor is 1 or -1
    return np.abs(total)
