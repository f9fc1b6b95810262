"""Units that a clause on a rate needs, and its chance of a verdict, by the exact rule of `stats.rates`."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from scipy.special import bdtr

_MOST_UNITS = 1_000_000


def rate_power(units: int, rate: float, limit: float, alpha: float) -> float | None:
    """Chance of the verdict that `rate` deserves: MET below the limit, BREACHED above; None on it."""
    if rate == limit:
        return None
    if rate > limit:
        # Events become non-events, and the same rule decides.
        rate, limit = 1 - rate, 1 - limit
    events = _most_events(units, limit, alpha)
    return 0.0 if events < 0 else float(bdtr(events, units, rate))


def plan_rate(rate: float, limit: float, alpha: float, power: float) -> int | None:
    """The least number found from which the chance is at least `power`; None where none to a million is, or on the
    limit itself. The chance saws up and down with the number, so some smaller ones may do too."""
    if rate_power(1, rate, limit, alpha) is None:
        return None
    high = 1
    while (rate_power(high, rate, limit, alpha) or 0.0) < power:
        high *= 2
        if high > _MOST_UNITS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if (rate_power(middle, rate, limit, alpha) or 0.0) < power:
            low = middle
        else:
            high = middle
    return high


def _most_events(units: int, limit: float, alpha: float) -> int:
    """The most events with which the rate is shown to be below the limit; −1 where no number shows it."""
    low, high = -1, units
    while high - low > 1:
        middle = (low + high) // 2
        if bdtr(middle, units, limit) <= alpha:
            low = middle
        else:
            high = middle
    return low
