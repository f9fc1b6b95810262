"""Mean per token over documents that are whole clusters: ratio estimate and bootstrap-t.

With S_d the sum and T_d the number of tokens of document d, theta = ΣS_d / ΣT_d. Its residuals e_d = S_d − theta·T_d
give SE = sqrt(D/(D − 1)·Σe_d²) / ΣT_d (the linearised variance of a ratio: W. G. Cochran, Sampling Techniques, 3rd ed.
1977, section 6.4). The bounds come from the bootstrap-t over whole documents (B. Efron and R. Tibshirani, An
Introduction to the Bootstrap, 1993, section 12.5): t* = (theta* − theta)/SE* of each replicate, and
upper = theta − q_a(t*)·SE, lower = theta − q_(1−a)(t*)·SE. It follows the skew of the documents, which a normal bound
does not.

Few documents: a sample of two dozen seldom holds the tail of what it was drawn from. Read at a = alpha the bound was
too low in 6 to 11% of simulated runs of 20 to 24 skewed documents at a nominal 5%. Two remedies:

- The error of a one-sided bootstrap-t falls as 1/D (P. Hall, Annals of Statistics 16 (1988) 927-953), so the tail is
  read at a = alpha·(1 − 8/D). That mends documents whose logarithms have a standard deviation up to about 0.6.
- Beyond, no resampling helps: Hall's skewness-transformed t and a log-scale t draw from the same sample and err 7 to
  8% all the same. What a sample without its tail still shows is the spread of its logarithms. So where all document
  means are positive, the upper bound is not below the lognormal one (`lognormal`), nor has it to lie above the
  bootstrap-t's own bound at a fifth of the level: upper = max(bt(a), min(lognormal(alpha), bt(a/5))). The last keeps
  it consistent where documents are not lognormal: gamma documents of shape 1 have a lognormal bound that never comes
  down to their mean. The p value is built alike: max(p_bt, min(p_lognormal, 5·p_bt)).

docs/design/statistics.md holds the measured errors and what the floor costs. The lower bound needs neither: skew to
the right makes it err less than alpha.

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

from kvassay.stats.lognormal import LogMean, log_mean

Floats = NDArray[np.float64]
_unlimited = np.errstate(over="ignore")
"""Rows of a pack may hold any float64: what overflows is infinite, and so is no bound."""

MINIMUM_DOCUMENTS = 20
"""Below this a bootstrap over documents is not trusted and no bound is given."""

SMALL_SAMPLE_LOSS = 8.0
"""c of the level alpha·(1 − c/D) at which the tail of t* is read."""

STRICT_SHARE = 0.2
"""The bootstrap-t at this share of the level is what the lognormal floor need not exceed."""

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
    floored: bool = False
    """True where the lognormal floor, and not the bootstrap-t at its own level, gave `upper`."""


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
    observed = (estimate - limit) / se
    plain = _upper_at(low_t, estimate, se, alpha, documents)
    p_plain = _p_value(1 + int(np.count_nonzero(low_t <= observed)), documents, replicates)
    upper, p_met = plain, p_plain
    if model := log_mean(sums / counts):
        upper, p_met = _with_floor(model, low_t, estimate, se, limit, alpha, plain, p_plain)
    rank = _safe_rank(alpha, documents, replicates)
    return ClusterBound(
        documents=documents,
        tokens=tokens,
        estimate=estimate,
        se=se,
        lower=estimate - float(high_t[-rank]) * se if rank else -math.inf,
        upper=upper,
        p_met=p_met,
        p_breached=_p_value(1 + int(np.count_nonzero(high_t >= observed)), documents, replicates),
        degenerate=False,
        floored=upper > plain,
    )


def _with_floor(
    model: LogMean, low_t: Floats, estimate: float, se: float, limit: float, alpha: float, plain: float, p_plain: float
) -> tuple[float, float]:
    """Upper bound and p value, `plain` ones raised to the lognormal model's as far as the strict bootstrap-t goes."""
    strict = _upper_at(low_t, estimate, se, STRICT_SHARE * alpha, model.size)
    upper = max(plain, min(model.upper(alpha), strict))
    return upper, max(p_plain, min(model.p_at_least(limit), p_plain / STRICT_SHARE))


def _upper_at(low_t: Floats, estimate: float, se: float, alpha: float, documents: int) -> float:
    """Bootstrap-t upper bound at 1 − alpha; inf where there are too few replicates for it."""
    rank = _safe_rank(alpha, documents, len(low_t))
    return estimate - float(low_t[rank - 1]) * se if rank else math.inf


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


@_unlimited
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


@_unlimited
def _standard_error(sums: Floats, counts: Floats, estimate: float, tokens: int) -> float:
    residuals = sums - estimate * counts
    documents = len(sums)
    return math.sqrt(documents / (documents - 1) * math.fsum((residuals * residuals).tolist())) / tokens


@_unlimited
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
