"""Paired non-inferiority of a binary outcome: Tango's score, with an exact unconditional test as the floor under it.

MET needs both: the Tango lower bound of delta above −margin, and the exact p value against delta <= −margin at most
alpha. BREACHED is the mirror image. Why the floor governs in general, by exact enumeration at alpha = 0.05 over
margins 0.5 to 5%, n = 30 to 1000 and every discordance:

- Tango alone is wrong up to 6.8% of the time for MET (m = 1%, n = 268, no discordant pair) and up to 9.1% for BREACHED
  (m = 0.5%, n = 448), both where discordance is rare and the normal approximation fails.
- The Clopper-Pearson bound where there are no gains mends the first, but neither the second nor 6.3% for MET at
  high discordance.
- Clopper-Pearson on losses for every table would ignore gains: with 10 losses and 10 gains of 1,000 it refuses a
  margin of 1% though nothing was lost.
- The exact unconditional test holds alpha everywhere, equals Clopper-Pearson where no pair is discordant, and costs
  little power elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.stats.distributions import normal_upper_tail
from kvassay.stats.tango import score_statistic, tango_interval
from kvassay.stats.unconditional import exact_p_values

_INVERSION_STEPS = 24
"""Halvings when an exact bound is sought: 2^−24 of the interval, 6e-8."""


class PairedBinary(NamedTuple):
    """Result for n pairs; delta = (gains − losses)/n, negative where the candidate lost."""

    n: int
    losses: int
    gains: int
    margin: float
    alpha: float
    delta: float
    lower: float
    """One-sided 1 − alpha lower bound of delta. MET if above −margin."""
    upper: float
    """One-sided 1 − alpha upper bound of delta. BREACHED if below −margin."""
    z: float
    """Tango's Z at delta = −margin; ±inf where its variance is zero."""
    tango_lower: float
    tango_upper: float
    exact_p_met: float
    exact_p_breached: float
    p_met: float
    """Larger of Tango's and the exact p value against delta <= −margin."""
    p_breached: float
    """Larger of Tango's and the exact p value against delta >= −margin."""
    exact_decides_met: bool
    """True where Tango's bound alone would have said MET and the exact test refuses it."""
    exact_decides_breached: bool


def paired_noninferiority(n: int, losses: int, gains: int, margin: float, alpha: float = 0.05) -> PairedBinary:
    """Test delta against −margin, 0 < margin < 1, in both directions at one-sided level alpha.

    `lower` and `upper` are Tango's, save where the exact test refuses what Tango's bound would allow; there the bound
    is the exact test's, so that the bounds always agree with the decision.
    """
    if min(losses, gains) < 0 or losses + gains > n or n < 1:
        raise ValueError(f"need losses + gains <= n and n >= 1, found {losses} losses, {gains} gains, n = {n}")
    if not 0 < margin < 1 or not 0 < alpha < 0.5:
        raise ValueError(f"need 0 < margin < 1 and 0 < alpha < 0.5, found margin {margin} and alpha {alpha}")
    interval = tango_interval(n, losses, gains, alpha)
    exact = exact_p_values(n, losses, gains, -margin)
    z = score_statistic(n, losses, gains, -margin)
    refuses_met = interval.lower > -margin and exact.noninferior > alpha
    refuses_breached = interval.upper < -margin and exact.inferior > alpha
    return PairedBinary(
        n=n,
        losses=losses,
        gains=gains,
        margin=margin,
        alpha=alpha,
        delta=(gains - losses) / n,
        lower=_exact_lower(n, losses, gains, margin, alpha) if refuses_met else interval.lower,
        upper=_exact_upper(n, losses, gains, margin, alpha) if refuses_breached else interval.upper,
        z=z,
        tango_lower=interval.lower,
        tango_upper=interval.upper,
        exact_p_met=exact.noninferior,
        exact_p_breached=exact.inferior,
        p_met=max(normal_upper_tail(z), exact.noninferior),
        p_breached=max(normal_upper_tail(-z), exact.inferior),
        exact_decides_met=refuses_met,
        exact_decides_breached=refuses_breached,
    )


def _exact_lower(n: int, losses: int, gains: int, margin: float, alpha: float) -> float:
    """Largest delta found below −margin that the exact test still rejects."""
    rejected, kept = -1.0, -margin
    for _ in range(_INVERSION_STEPS):
        middle = (rejected + kept) / 2
        if exact_p_values(n, losses, gains, middle).noninferior <= alpha:
            rejected = middle
        else:
            kept = middle
    return rejected


def _exact_upper(n: int, losses: int, gains: int, margin: float, alpha: float) -> float:
    """Smallest delta found above −margin that the exact test still rejects."""
    kept, rejected = -margin, 1.0
    for _ in range(_INVERSION_STEPS):
        middle = (kept + rejected) / 2
        if exact_p_values(n, losses, gains, middle).inferior <= alpha:
            rejected = middle
        else:
            kept = middle
    return rejected
