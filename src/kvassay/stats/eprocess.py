"""Paired non-inferiority that may be looked at after every pair: a betting e-process.

With d_t = +1 for a gain, −1 for a loss and 0 else, bet against delta <= −m: wealth E_n = Π(1 + lambda_t·(d_t + m))
with predictable lambda_t in [0, 1/(1 − m)) is a nonnegative supermartingale under that hypothesis, whatever the
discordance, so it ever reaches 1/alpha with a chance of at most alpha (Ville's inequality). MET when it does; BREACHED
when the mirror image, which bets on −(d_t + m) with lambda_t in [0, 1/(1 + m)), does first. I. Waudby-Smith and
A. Ramdas, Journal of the Royal Statistical Society B 86 (2024) 1-27.

The bet is Cover's: capital is spread over fixed fractions of the largest lambda, which are the nodes of the arcsine
law (the Dirichlet(1/2) portfolio of T. Cover and E. Ordentlich, IEEE Transactions on Information Theory 42 (1996)
348-363), and left there. The wealth is the mean of theirs, and lambda_t, the mean weighted by what each holds, depends
on earlier pairs alone. Nothing is tuned, and the arcsine law is dense where the best bet usually is: near the top.

The bounds of delta are a confidence sequence: the values, on a grid, that no process up to n has rejected.
Only products, sums and sorted constants are used, so that equal pairs give equal bits.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.stats.distributions import reproducible

Floats = NDArray[np.float64]
Differences = NDArray[np.int64]
"""+1 gain, −1 loss, 0 concordant, in the order of the run."""

_BETS = 24
FRACTIONS: Floats = np.array([reproducible(math.sin(math.pi * (k + 0.5) / (2 * _BETS)) ** 2) for k in range(_BETS)])
"""Of the largest lambda; nodes of the arcsine law on (0, 1)."""
_GRID_STEPS = 256
"""Of each side of the confidence sequence; its ends are read on steps of 1/128."""

Decision = Literal["met", "breached"]


class SequentialPairs(NamedTuple):
    """Result after n pairs."""

    n: int
    losses: int
    gains: int
    margin: float
    alpha: float
    delta: float
    lower: float
    """One-sided 1 − alpha lower bound of delta, valid at every n at once; −1 where nothing is excluded."""
    upper: float
    p_met: float
    """Anytime-valid p value against delta <= −margin: one over the largest wealth so far."""
    p_breached: float
    decision: Decision | None
    """The side whose wealth was the first to reach 1/alpha."""
    decided_at: int | None
    """Pairs after which it did."""


def wealth(gains: Floats, worst: float) -> Floats:
    """Wealth after each of the rounds `[n]`; `gains` >= −worst are fair or unfavourable under the hypothesis."""
    # Bet by bet: how numpy adds along an axis depends on the array's shape, and with it the last bit.
    total: Floats = np.zeros(len(gains), dtype=np.float64)
    with np.errstate(over="ignore"):
        for fraction in FRACTIONS.tolist():
            held: Floats = np.cumprod(1 + fraction / worst * gains, dtype=np.float64)
            total = np.add(total, held)
    return total / _BETS


def wealths(differences: Differences, margin: float) -> tuple[Floats, Floats]:
    """Wealth against delta <= −margin, and against delta >= −margin, after each pair."""
    moved = differences.astype(np.float64) + margin
    return wealth(moved, 1 - margin), wealth(-moved, 1 + margin)


def sequential_pairs(differences: Differences, margin: float, alpha: float = 0.05) -> SequentialPairs:
    """Judge the pairs so far, 0 < margin < 1; raises ValueError for no pairs and for other values than −1, 0 and 1."""
    n = len(differences)
    if n < 1 or not np.isin(differences, (-1, 0, 1)).all():
        raise ValueError(f"need at least one pair, each −1, 0 or 1, found {n} pairs")
    if not 0 < margin < 1 or not 0 < alpha < 0.5:
        raise ValueError(f"need 0 < margin < 1 and 0 < alpha < 0.5, found margin {margin} and alpha {alpha}")
    for_met, for_breached = wealths(differences, margin)
    crossings: list[tuple[int, Decision]] = []
    paths: tuple[tuple[Floats, Decision], ...] = ((for_met, "met"), (for_breached, "breached"))
    for path, side in paths:
        reached = np.flatnonzero(path >= 1 / alpha)
        if len(reached):
            crossings.append((int(reached[0]) + 1, side))
    first = min(crossings, default=None)
    lower, upper = _lower(differences, alpha), -_lower(-differences, alpha)
    decision = first[1] if first else None
    return SequentialPairs(
        n=n,
        losses=int(np.count_nonzero(differences < 0)),
        gains=int(np.count_nonzero(differences > 0)),
        margin=margin,
        alpha=alpha,
        delta=int(differences.sum()) / n,
        # The grid may stop just short of the margin that the process itself has rejected.
        lower=max(lower, -margin) if decision == "met" else lower,
        upper=min(upper, -margin) if decision == "breached" else upper,
        p_met=min(1.0, 1 / float(for_met.max())),
        p_breached=min(1.0, 1 / float(for_breached.max())),
        decision=decision,
        decided_at=first[0] if first else None,
    )


def _lower(differences: Differences, alpha: float) -> float:
    """The largest value of the grid such that it and all below it have been rejected as delta."""
    as_floats = differences.astype(np.float64)
    lower, above, found = -1.0, _GRID_STEPS, 0
    # The hypotheses delta <= d are nested, so the first that stands ends the search; halving finds it.
    while above - found > 1:
        middle = (found + above) // 2
        null = -1 + 2 * middle / _GRID_STEPS
        if float(wealth(as_floats - null, 1 + null).max()) >= 1 / alpha:
            found, lower = middle, null
        else:
            above = middle
    return lower
