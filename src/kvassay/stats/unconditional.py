"""Exact unconditional p values for paired proportions: Tango's score, with the nuisance parameter at its worst.

H. Hsueh, J. Liu and J. Chen, "Unconditional exact tests for equivalence or noninferiority for paired binary
endpoints", Biometrics 57 (2001) 478-483. Losses and gains are trinomial with probabilities q and q + d. At the null
delta = d the p value is the largest probability, over every possible q in [max(0, −d), (1 − d)/2], of a table whose
Z(d) is at least as extreme as the observed one. By construction the error rate is at most alpha at every n.

With no discordant pair the worst case is q = m, no gain possible, and the p value is (1 − m)^n: the Clopper-Pearson
upper bound of the loss rate. So this test carries the exact loss bound over to tables that have gains, where a bound
on losses alone would ignore them.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, xlogy

from kvassay.stats.distributions import reproducible
from kvassay.stats.tango import Floats, score_statistic, score_statistics

_TIE = 1e-9
"""Tables whose Z differs by less are as extreme as the observed one; the region only grows by it."""
_GRID_POINTS = 160
_GRID_POWER = 2.5
"""The probability moves fastest where discordance is rare, so the grid is densest there."""
_ZOOM_POINTS = 16
_ZOOM_ROUNDS = 2
_DIGITS = 9
"""Digits kept of a sum of gamma functions, see `distributions.reproducible`."""


class ExactPValues(NamedTuple):
    noninferior: float
    """Evidence against delta <= d: the probability of a Z at least as large."""
    inferior: float
    """Evidence against delta >= d: the probability of a Z at least as small."""


def exact_p_values(n: int, losses: int, gains: int, delta: float) -> ExactPValues:
    """Both one-sided p values at the null `delta`; −1 < delta < 1. About 20 ms, almost independent of n."""
    observed = score_statistic(n, losses, gains, delta)
    enough = least_gains(n, delta, observed - _TIE)
    too_many = least_gains(n, delta, observed + _TIE)
    return ExactPValues(
        noninferior=worst_case_probability(n, delta, enough),
        inferior=worst_case_probability(n, delta, too_many, below=True),
    )


def least_gains(n: int, delta: float, z: float) -> NDArray[np.int64]:
    """For each number of losses 0..n, the least number of gains with Z(delta) >= z; n − losses + 1 where none has."""
    losses = np.arange(n + 1, dtype=np.int64)
    below = np.full(n + 1, -1, dtype=np.int64)
    reached = n - losses + 1
    while np.any(active := reached - below > 1):
        middle = np.where(active, (below + reached) // 2, 0)
        hit = score_statistics(n, losses.astype(np.float64), middle.astype(np.float64), delta) >= z
        reached = np.where(active & hit, middle, reached)
        below = np.where(active & ~hit, middle, below)
    return reached


def worst_case_probability(n: int, delta: float, gains: NDArray[np.int64], below: bool = False) -> float:
    """Largest probability over the nuisance parameter of at least `gains[losses]` gains, or of fewer if `below`."""
    low, high = max(0.0, -delta), (1 - delta) / 2
    points = [low + (high - low) * (i / (_GRID_POINTS - 1)) ** _GRID_POWER for i in range(_GRID_POINTS)]
    best = 0.0
    for _ in range(1 + _ZOOM_ROUNDS):
        probabilities = [region_probability(n, q, delta, gains, below) for q in points]
        peak = int(np.argmax(probabilities))
        best = max(best, probabilities[peak])
        left, right = points[max(peak - 1, 0)], points[min(peak + 1, len(points) - 1)]
        points = [left + (right - left) * i / (_ZOOM_POINTS - 1) for i in range(_ZOOM_POINTS)]
    return min(1.0, reproducible(best, _DIGITS))


def region_probability(
    n: int, loss_probability: float, delta: float, gains: NDArray[np.int64], below: bool = False
) -> float:
    """P(number of gains >= gains[number of losses]), or its complement, for a trinomial of n pairs."""
    spread = 9 * (n * loss_probability * (1 - loss_probability)) ** 0.5 + 30
    first = max(0, int(n * loss_probability - spread))
    last = min(n, int(n * loss_probability + spread))
    losses = np.arange(first, last + 1, dtype=np.float64)
    rest = n - losses
    log_weight = (
        gammaln(n + 1.0)
        - gammaln(losses + 1)
        - gammaln(rest + 1)
        + xlogy(losses, loss_probability)
        + xlogy(rest, 1 - loss_probability)
    )
    rate = min(1.0, max(0.0, (loss_probability + delta) / (1 - loss_probability))) if loss_probability < 1 else 0.0
    need = gains[first : last + 1].astype(np.float64)
    tail = _at_least(need, rest, rate)
    return float(np.sum(np.exp(log_weight) * (1 - tail if below else tail)))


def _at_least(need: Floats, trials: Floats, rate: float) -> Floats:
    """P(Binomial(trials, rate) >= need)."""
    inside = betainc(np.maximum(need, 1.0), np.maximum(trials - need + 1, 1.0), rate)
    return np.where(need <= 0, 1.0, np.where(need > trials, 0.0, inside))
