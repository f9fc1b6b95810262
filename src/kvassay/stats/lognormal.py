"""Upper bound of a mean as if its sample were lognormal: what guards a bootstrap that cannot see the tail.

With l_d = log x_d, mean m and variance v of the l_d, log E[x] = mu + sigma²/2 is estimated by m + v/2 with variance
v/D + v²/(2(D − 1)), and the bound is exp(m + v/2 + t·sqrt(v/D + v²/(2(D − 1)))), t the quantile of Student's
distribution with D − 1 degrees of freedom. This is Cox's method (C. E. Land, Technometrics 14 (1972) 145-158) with
Student's quantile in place of the normal one (U. Olsson, Journal of Statistics Education 13 (2005), no. 1).
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from kvassay.stats.distributions import reproducible

_P_DIGITS = 9


class LogMean(NamedTuple):
    """Estimate of log E[x] of a lognormal sample."""

    size: int
    estimate: float
    se: float

    def upper(self, alpha: float) -> float:
        """One-sided 1 − alpha upper bound of E[x]; inf beyond the largest float."""
        exponent = self.estimate + float(stdtrit(self.size - 1, 1 - alpha)) * self.se
        return reproducible(math.exp(exponent)) if exponent < 709 else math.inf

    def p_at_least(self, limit: float) -> float:
        """p value against E[x] >= limit; at most alpha exactly where `upper(alpha)` <= limit, up to rounding."""
        if limit <= 0:
            return 1.0
        distance = math.log(limit) - self.estimate
        if self.se == 0:
            return float(distance <= 0)
        return reproducible(float(stdtr(self.size - 1, -distance / self.se)), _P_DIGITS)


def log_mean(values: NDArray[np.float64]) -> LogMean | None:
    """Of at least two values `[size]`; None where one is not positive, so that no lognormal holds it."""
    if len(values) < 2 or float(values.min()) <= 0:
        return None
    size = len(values)
    logs = [reproducible(math.log(value)) for value in values.tolist()]
    mean = math.fsum(logs) / size
    variance = math.fsum((value - mean) * (value - mean) for value in logs) / (size - 1)
    se = math.sqrt(variance / size + variance * variance / (2 * (size - 1)))
    return LogMean(size, mean + variance / 2, se)
