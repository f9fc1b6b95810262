"""McNemar's exact test of paired outcomes, mid-p: descriptive beside a verdict.

Of b losses and c gains, the number of losses is Binomial(b + c, 1/2) if nothing changed. The mid-p value counts half
the probability of the observed table: M. Fagerland, S. Lydersen, P. Laake, "The McNemar test for binary matched-pairs
data: mid-p and asymptotic are better than exact conditional", BMC Medical Research Methodology 13 (2013) 91.
It asks whether accuracy changed at all. A large p is no evidence that it did not, so no verdict rests on it.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from scipy.special import bdtr

from kvassay.stats.distributions import reproducible

_DIGITS = 9


def mcnemar_mid_p(losses: int, gains: int) -> float | None:
    """Two-sided mid-p value; None where no pair is discordant, since nothing was observed to test."""
    if min(losses, gains) < 0:
        raise ValueError(f"need losses and gains of at least 0, found {losses} and {gains}")
    discordant, fewer = losses + gains, min(losses, gains)
    if discordant == 0:
        return None
    tail = float(bdtr(fewer, discordant, 0.5))
    point = tail - (float(bdtr(fewer - 1, discordant, 0.5)) if fewer else 0.0)
    # Where losses equal gains the exact p is 1, and half the observed table's probability comes off.
    return reproducible(1 - point / 2 if losses == gains else 2 * tail - point, _DIGITS)
