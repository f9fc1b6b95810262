"""Normal and binomial functions whose results come out equal on every machine.

A verdict is judged again elsewhere and must be byte-equal there. The last bits of `log`, `exp` and the incomplete
beta function differ between math libraries, so these functions round to 12 significant digits. Everything built on
them uses +, −, ×, ÷ and sqrt, which IEEE 754 fixes to the last bit, and `math.fsum`, which is exact.

scipy.special is imported, not scipy.stats: the latter takes about a second.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from scipy.special import betaincinv, ndtr, ndtri

SIGNIFICANT_DIGITS = 12


def reproducible(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """`value` rounded to `digits` significant digits; infinities and NaN pass unchanged."""
    return float(f"{float(value):.{digits - 1}e}")


def normal_quantile(probability: float) -> float:
    """z with P(N(0, 1) <= z) = probability."""
    return reproducible(ndtri(probability))


def normal_upper_tail(z: float) -> float:
    """P(N(0, 1) >= z)."""
    return reproducible(ndtr(-z))


def binomial_upper_bound(events: int, trials: int, alpha: float) -> float:
    """Exact one-sided 1 − alpha upper bound of a rate (Clopper and Pearson 1934, Biometrika 26:404).

    With no event it is 1 − alpha^(1/trials), about 3/trials at alpha = 0.05.
    """
    _check_counts(events, trials)
    if events == trials:
        return 1.0
    return reproducible(betaincinv(events + 1, trials - events, 1 - alpha))


def binomial_lower_bound(events: int, trials: int, alpha: float) -> float:
    """Exact one-sided 1 − alpha lower bound of a rate (Clopper and Pearson 1934)."""
    _check_counts(events, trials)
    if events == 0:
        return 0.0
    return reproducible(betaincinv(events, trials - events + 1, alpha))


def _check_counts(events: int, trials: int) -> None:
    if not 0 <= events <= trials or trials < 1:
        raise ValueError(f"need 0 <= events <= trials and at least one trial, found {events} of {trials}")
