"""Bounds for a rate of independent trials, and for a mean of independent figures between 0 and 1.

One trial is one independently drawn unit, such as a prompt that the model continues. Neither bound rests on an
approximation, so neither needs a least number of trials, and no event at all leaves its uncertainty in place.

- A rate: the exact binomial tails (C. J. Clopper and E. S. Pearson, Biometrika 26 (1934) 404-413).
- A mean of figures in [0, 1] of whatever distribution: W. Hoeffding, "Probability inequalities for sums of bounded
  random variables", Journal of the American Statistical Association 58 (1963), theorem 1 in its sharp form,
  P(mean of n <= x) <= exp(−n·kl(x, mu)) for x below the true mean mu, and likewise above it; kl is that of two
  Bernoulli variables. With all figures zero it gives 1 − alpha^(1/n), as the exact binomial does.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import math
from typing import NamedTuple

from scipy.special import bdtr, rel_entr

from kvassay.stats.distributions import binomial_lower_bound, binomial_upper_bound, normal_quantile, reproducible

_BISECTIONS = 60
_DIGITS = 9
"""Digits kept of a tail probability, whose last ones differ between math libraries."""


class RateBound(NamedTuple):
    """One-sided 1 − alpha bounds of a rate or mean, and p values against the limit."""

    n: int
    estimate: float
    lower: float
    upper: float
    p_met: float
    """Against a true value of the limit or more."""
    p_breached: float
    """Against a true value of the limit or less."""


def binomial_rate(events: int, trials: int, limit: float, alpha: float) -> RateBound:
    """The share of independent trials with an event, against `limit`, 0 < limit < 1."""
    _check(limit, trials)
    return RateBound(
        n=trials,
        estimate=events / trials,
        lower=binomial_lower_bound(events, trials, alpha),
        upper=binomial_upper_bound(events, trials, alpha),
        p_met=reproducible(bdtr(events, trials, limit), _DIGITS),
        p_breached=1.0 if events == 0 else reproducible(bdtr(trials - events, trials, 1 - limit), _DIGITS),
    )


def bounded_mean(values: list[float], limit: float, alpha: float) -> RateBound:
    """The mean of independent figures between 0 and 1, against `limit`, 0 < limit < 1."""
    _check(limit, len(values))
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"need figures between 0 and 1, found {min(values)} to {max(values)}")
    n = len(values)
    mean = min(1.0, math.fsum(values) / n)
    tail = reproducible(math.exp(-n * _bernoulli_kl(mean, limit)), _DIGITS)
    return RateBound(
        n=n,
        estimate=mean,
        lower=reproducible(_mean_bound(mean, n, alpha, 0.0)),
        upper=reproducible(_mean_bound(mean, n, alpha, 1.0)),
        p_met=tail if mean < limit else 1.0,
        p_breached=tail if mean > limit else 1.0,
    )


class Interval(NamedTuple):
    low: float
    high: float


def wilson_interval(events: int, trials: int, level: float) -> Interval:
    """Two-sided interval of a rate (E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212); never of no width.

    For pointwise bands in figures; verdicts rest on exact bounds.
    """
    z = normal_quantile((1 + level) / 2)
    share = events / trials
    centre, spread = share + z * z / (2 * trials), z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    low = 0.0 if events == 0 else reproducible(max(0.0, (centre - spread) / scale))
    high = 1.0 if events == trials else reproducible(min(1.0, (centre + spread) / scale))
    return Interval(low, high)


def _mean_bound(mean: float, n: int, alpha: float, end: float) -> float:
    """The value between the mean and `end` at which the tail bound is alpha; `end` if it stays above."""
    reach = -math.log(alpha) / n
    kept, rejected = mean, end
    if mean == end or _bernoulli_kl(mean, end) < reach:
        return end
    for _ in range(_BISECTIONS):
        middle = (kept + rejected) / 2
        if _bernoulli_kl(mean, middle) < reach:
            kept = middle
        else:
            rejected = middle
    return rejected


def _bernoulli_kl(mean: float, other: float) -> float:
    return float(rel_entr(mean, other) + rel_entr(1 - mean, 1 - other))


def _check(limit: float, trials: int) -> None:
    if not 0 < limit < 1 or trials < 1:
        raise ValueError(f"need 0 < limit < 1 and at least one trial, found limit {limit} and {trials} trials")
