"""Power and expected length of the sequential design, by simulation of its own e-process.

There is no closed form: the wealth of a mixture of bets has none. Seeded runs with the discordance and difference that
are expected tell after how many pairs the deserved side reaches 1/alpha first.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.stats.eprocess import FRACTIONS

_RUNS = 1000
_SEED = 7
MOST_PAIRS = 4096
"""Pairs beyond which no run is followed."""


class SequentialPlan(NamedTuple):
    power: float
    """Share of runs that decide rightly within the pairs asked for; standard error at most 1.6 points."""
    pairs: int | None
    """Pairs within which the share asked for decides rightly; None beyond `MOST_PAIRS`."""
    median: int | None
    """Pairs after which half the runs have decided rightly; None beyond `MOST_PAIRS`."""


def plan_sequential(
    pairs: int, margin: float, discordance: float, delta: float = 0.0, alpha: float = 0.05, power: float = 0.8
) -> SequentialPlan:
    """For the verdict that `delta` deserves: MET where it lies inside the margin, else BREACHED."""
    if not 0 < margin < 1 or not abs(delta) <= discordance <= 1 or not 0 < alpha < 0.5:
        raise ValueError(
            f"need 0 < margin < 1, |delta| <= discordance <= 1 and 0 < alpha < 0.5, found margin {margin}, "
            f"delta {delta}, discordance {discordance}, alpha {alpha}"
        )
    times = decision_times(margin, discordance, delta, alpha, breached=delta + margin <= 0)
    rank, middle = max(1, round(power * _RUNS)), _RUNS // 2
    return SequentialPlan(float(np.mean(times <= min(pairs, MOST_PAIRS))), _within(times, rank), _within(times, middle))


@lru_cache(maxsize=256)
def decision_times(
    margin: float, discordance: float, delta: float, alpha: float, *, breached: bool
) -> NDArray[np.int64]:
    """Sorted pairs after which each run decides for that side, MOST_PAIRS + 1 where it does not."""
    loss, gain = (discordance - delta) / 2, (discordance + delta) / 2
    generator = np.random.PCG64(_SEED)
    times = np.full(_RUNS, MOST_PAIRS + 1, dtype=np.int64)
    ids = np.arange(_RUNS)
    met, lost = np.ones((len(FRACTIONS), _RUNS)), np.ones((len(FRACTIONS), _RUNS))
    for pair in range(1, MOST_PAIRS + 1):
        uniform = (generator.random_raw(_RUNS)[ids] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        moved = np.where(uniform < loss, -1.0, np.where(uniform < loss + gain, 1.0, 0.0)) + margin
        met = met * (1 + (FRACTIONS / (1 - margin))[:, None] * moved)
        lost = lost * (1 - (FRACTIONS / (1 + margin))[:, None] * moved)
        is_met, is_lost = met.mean(axis=0) >= 1 / alpha, lost.mean(axis=0) >= 1 / alpha
        times[ids[is_lost if breached else is_met]] = pair
        going = ~(is_met | is_lost)
        ids, met, lost = ids[going], met[:, going], lost[:, going]
        if not len(ids):
            break
    times.sort()
    return times


def _within(times: NDArray[np.int64], rank: int) -> int | None:
    found = int(times[rank - 1])
    return found if found <= MOST_PAIRS else None
