"""Tango's score statistic and interval for the difference of two paired proportions.

T. Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
Statistics in Medicine 17 (1998) 891-908. Of n pairs, `losses` are right under the reference and wrong under the
candidate, `gains` the reverse; delta = P(gain) − P(loss). Under delta = d the statistic is

    Z(d) = (gains − losses − n·d) / sqrt(n·(2q + d − d²)),

with q the maximum-likelihood probability of a loss, the larger root in [max(0, −d), (1 − d)/2] of
−2n·q² + [(b + c)(1 − d) − 2b·d − 2(n − b − c)·d]·q + b·d(1 − d) = 0 (b losses, c gains). At d = 0 it is McNemar's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.stats.distributions import normal_quantile

_BISECTIONS = 80
"""Halvings of an interval of at most length 2; the bracket reaches the spacing of floats well before."""

Floats = NDArray[np.float64]


class TangoInterval(NamedTuple):
    """One-sided bounds of delta, each at level 1 − alpha."""

    lower: float
    upper: float


def score_statistics(n: int, losses: Floats, gains: Floats, delta: float) -> Floats:
    """Z(delta) for arrays of counts; ±inf where the variance under delta is zero and the difference is not."""
    margin = -delta
    linear = (losses + gains) * (1 + margin) + 2 * losses * margin + 2 * (n - losses - gains) * margin
    discriminant = linear * linear - 8 * n * losses * margin * (1 + margin)
    loss_probability = (linear + np.sqrt(np.maximum(discriminant, 0.0))) / (4 * n)
    variance = n * (2 * loss_probability - margin - margin * margin)
    difference = gains - losses + n * margin
    unbounded = np.where(difference > 0, np.inf, np.where(difference < 0, -np.inf, 0.0))
    positive = variance > 0
    scaled = difference / np.sqrt(np.where(positive, variance, 1.0))
    return np.where(positive, scaled, unbounded)


def score_statistic(n: int, losses: int, gains: int, delta: float) -> float:
    """Z(delta) of one table."""
    return float(score_statistics(n, np.array([float(losses)]), np.array([float(gains)]), delta)[0])


def tango_interval(n: int, losses: int, gains: int, alpha: float) -> TangoInterval:
    """Bounds of delta by inverting the score test; bisection, since Z falls as delta rises."""
    z = normal_quantile(1 - alpha)
    # Exchanging the two arms turns an upper bound into a lower one.
    return TangoInterval(_lower_bound(n, losses, gains, z), -_lower_bound(n, gains, losses, z))


def _lower_bound(n: int, losses: int, gains: int, z: float) -> float:
    rejected, kept = -1.0, (gains - losses) / n
    if score_statistic(n, losses, gains, rejected) <= z:
        return -1.0
    for _ in range(_BISECTIONS):
        middle = (rejected + kept) / 2
        if score_statistic(n, losses, gains, middle) > z:
            rejected = middle
        else:
            kept = middle
    return rejected  # the end that the test rejects, so the bound errs to the safe side
