"""Mean per token over documents that are whole clusters: ratio estimate and bootstrap-t.

With S_d the sum and T_d the number of tokens of document d, theta = ΣS_d / ΣT_d. Its residuals e_d = S_d − theta·T_d
give SE = sqrt(D/(D − 1)·Σe_d²) / ΣT_d (the linearised variance of a ratio: W. G. Cochran, Sampling Techniques, 3rd ed.
1977, section 6.4). The bounds come from the bootstrap-t over whole documents (B. Efron and R. Tibshirani, An
Introduction to the Bootstrap, 1993, section 12.5): t* = (theta* − theta)/SE* of each replicate, and
upper = theta − q_a(t*)·SE, lower = theta − q_(1−a)(t*)·SE. It follows the skew of the documents, which a normal bound
does not.

Few documents: a sample of two dozen seldom holds the tail of what it was drawn from, and with a = alpha the bound was
too low in 6 to 9% of simulated runs of 24 skewed documents at a nominal 5%. The error of a one-sided bootstrap-t falls
as 1/D (P. Hall, Annals of Statistics 16 (1988) 927-953), so the tail is read at a = alpha·(1 − 8/D), the constant
being the one that brings the simulations back to nominal: 4 to 6% for design effects of 2 to 10, still 8.5% where
document means have a lognormal sigma of 1 (design effect 18). p values are divided by the same factor.

Few replicates: a quantile of 2,000 replicates moves with the seed, and the seed is fixed in the contract, so an
unlucky one would err in every run. The rank is therefore taken one binomial standard deviation towards the safe side.

Reproducible to the last bit: sums are exact (`math.fsum`), documents are put in the order of their values, so neither
row order nor names matter; the replicates come from raw PCG64 words, whose stream NumPy guarantees, and are added up
in a fixed order without BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MINIMUM_DOCUMENTS = 20
"""Below this a bootstrap over documents is not trusted and no bound is given."""

SMALL_SAMPLE_LOSS = 8.0
"""c of the level alpha·(1 − c/D) at which the tail of t* is read."""

_DEGENERATE_RELATIVE = 1e-12
"""A standard error below this share of the largest document mean is rounding, not spread."""
_CELLS_AT_ONCE = 1 << 21
"""Replicates are drawn in pieces of about this many document draws, so that memory stays small."""


class ClusterBound(NamedTuple):
    """Mean per token with one-sided bounds at 1 − alpha; the bounds are None with too few documents."""

    documents: int
    tokens: int
    estimate: float
    se: float | None
    """Cluster standard error; None with one document."""
    lower: float | None
    upper: float | None
    """May be ±inf, where nothing bounds that side: more than alpha of the replicates had no spread at all, or there are
    too few replicates for such an alpha."""
    p_met: float | None
    """Bootstrap p value against theta >= limit; at most alpha exactly where `upper` < limit, up to rounding."""
    p_breached: float | None
    """Bootstrap p value against theta <= limit."""
    degenerate: bool
    """True where all documents have the same mean: there is no spread, and the bounds are the estimate itself."""


def document_sums(values: Floats, document: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Exact sums and counts of `values` for each document code, in rising order of the codes."""
    order = np.argsort(document, kind="stable")
    starts = np.flatnonzero(np.diff(document[order], prepend=np.iinfo(np.int64).min))
    pieces = np.split(values[order], starts[1:])
    sums = np.array([math.fsum(piece.tolist()) for piece in pieces], dtype=np.float64)
    counts = np.array([len(piece) for piece in pieces], dtype=np.float64)
    return sums, counts


def cluster_bound(
    sums: Floats | Sequence[float],
    counts: Floats | Sequence[float],
    limit: float,
    alpha: float = 0.05,
    replicates: int = 2000,
    seed: int = 7,
    minimum_documents: int = MINIMUM_DOCUMENTS,
) -> ClusterBound:
    """Bounds of ΣS/ΣT from document sums S and token counts T (both `[documents]`), and p values against `limit`."""
    sums, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    if sums.shape != counts.shape or sums.ndim != 1 or len(sums) == 0:
        raise ValueError(f"need equally long, non-empty sums and counts, found {sums.shape} and {counts.shape}")
    if not np.all(np.isfinite(sums)) or np.any(counts < 1):
        raise ValueError("document sums must be finite and every document must have at least one token")
    order = np.lexsort((counts, sums))
    sums, counts = sums[order], counts[order]
    documents, tokens = len(sums), int(math.fsum(counts.tolist()))
    estimate = math.fsum(sums.tolist()) / tokens
    if documents < 2:
        return ClusterBound(documents, tokens, estimate, None, None, None, None, None, False)
    se = _standard_error(sums, counts, estimate, tokens)
    scale = float(np.max(np.abs(sums / counts)))
    degenerate = se <= _DEGENERATE_RELATIVE * scale
    if documents < max(minimum_documents, MINIMUM_DOCUMENTS):
        return ClusterBound(documents, tokens, estimate, se, None, None, None, None, degenerate)
    if degenerate:
        p_met, p_breached = float(estimate >= limit), float(estimate <= limit)
        return ClusterBound(documents, tokens, estimate, se, estimate, estimate, p_met, p_breached, True)
    low_t, high_t = bootstrap_t(sums, counts, estimate, replicates, seed)
    rank = _safe_rank(alpha, documents, replicates)
    observed = (estimate - limit) / se
    return ClusterBound(
        documents=documents,
        tokens=tokens,
        estimate=estimate,
        se=se,
        lower=estimate - float(high_t[-rank]) * se if rank else -math.inf,
        upper=estimate - float(low_t[rank - 1]) * se if rank else math.inf,
        p_met=_p_value(1 + int(np.count_nonzero(low_t <= observed)), documents, replicates),
        p_breached=_p_value(1 + int(np.count_nonzero(high_t >= observed)), documents, replicates),
        degenerate=False,
    )


def bootstrap_level(alpha: float, documents: int) -> float:
    """Level at which the tail of t* is read so that the bound errs at most about `alpha` of the time."""
    return alpha * (1 - SMALL_SAMPLE_LOSS / documents)


def _p_value(rank: int, documents: int, replicates: int) -> float:
    """p value of the replicate of this rank from its tail, with the small-sample and the Monte Carlo allowance."""
    share = rank / (replicates + 1)
    deviation = math.sqrt(share * (1 - share) / (replicates + 1))
    return min(1.0, (share + deviation) / bootstrap_level(1.0, documents))


def _safe_rank(alpha: float, documents: int, replicates: int) -> int:
    """The largest rank whose p value is at most `alpha`; 0 where so few replicates cannot show so small an error."""
    rank = math.floor(bootstrap_level(alpha, documents) * (replicates + 1))
    while rank > 0 and _p_value(rank, documents, replicates) > alpha:
        rank -= 1
    return rank


class StudentizedReplicates(NamedTuple):
    """Sorted t* of all replicates. They differ only where 0/0 was resolved to −inf and to +inf, the safe sides."""

    for_upper: Floats
    for_lower: Floats


def bootstrap_t(sums: Floats, counts: Floats, estimate: float, replicates: int, seed: int) -> StudentizedReplicates:
    """t* of `replicates` resamples of whole documents."""
    generator = np.random.PCG64(seed)
    step = max(1, _CELLS_AT_ONCE // len(sums))
    pieces = [
        _studentize(sums, counts, estimate, _draws(generator, len(sums), min(step, replicates - begun)))
        for begun in range(0, replicates, step)
    ]
    t = np.concatenate(pieces)
    undefined = np.isnan(t)
    return StudentizedReplicates(
        np.sort(np.where(undefined, -np.inf, t)),
        np.sort(np.where(undefined, np.inf, t)),
    )


def design_effect(values: Floats, document: NDArray[np.int64]) -> float | None:
    """Cluster variance of the mean over its variance if tokens were independent; None where that is zero.

    `values` and `document` (integer codes) are `[tokens]`. L. Kish, Survey Sampling (1965), section 8.2.
    """
    sums, counts = document_sums(values, document)
    tokens = len(values)
    if len(sums) < 2 or tokens < 2:
        return None
    estimate = math.fsum(sums.tolist()) / tokens
    independent = math.fsum(((values - estimate) ** 2).tolist()) / (tokens - 1) / tokens
    if independent <= 0:
        return None
    se = _standard_error(sums, counts, estimate, tokens)
    return se * se / independent  # not se ** 2, which goes through the math library's pow


def _standard_error(sums: Floats, counts: Floats, estimate: float, tokens: int) -> float:
    residuals = sums - estimate * counts
    documents = len(sums)
    return math.sqrt(documents / (documents - 1) * math.fsum((residuals * residuals).tolist())) / tokens


def _studentize(sums: Floats, counts: Floats, estimate: float, draws: NDArray[np.int64]) -> Floats:
    """t* for draws `[documents, replicates]`; ±inf or NaN where a replicate has no spread."""
    documents = len(sums)
    drawn_sums, drawn_counts = sums[draws], counts[draws]
    tokens = drawn_counts.sum(axis=0)
    means = drawn_sums.sum(axis=0) / tokens
    residuals = drawn_sums - means * drawn_counts
    errors = np.sqrt(documents / (documents - 1) * (residuals * residuals).sum(axis=0)) / tokens
    with np.errstate(divide="ignore", invalid="ignore"):
        return (means - estimate) / errors


def _draws(generator: np.random.PCG64, documents: int, replicates: int) -> NDArray[np.int64]:
    """The next document numbers `[documents, replicates]`, one replicate after the other.

    Raw 64-bit words scaled to 0..documents−1: NumPy guarantees the stream of a bit generator across versions, which
    it does not for the methods of Generator. The bias of the scaling is below documents/2^32.
    """
    words = generator.random_raw(documents * replicates)
    numbers = ((words >> np.uint64(32)) * np.uint64(documents)) >> np.uint64(32)
    return np.ascontiguousarray(numbers.astype(np.int64).reshape(replicates, documents).T)
