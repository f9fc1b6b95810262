"""Bits for units under a byte budget: one choice a unit, so that the sum of their losses is least.

This is the multiple-choice knapsack problem (H. Kellerer, U. Pferschy and D. Pisinger, Knapsack Problems, Springer
2004, chapter 11). Byte counts of real caches have a large common divisor, so the dynamic programme over the budget is
small and the answer exact. Where it would not be, the greedy rule on each unit's lower convex hull, which is
the Lagrangian relaxation (Y. Shoham and A. Gersho, IEEE Trans. ASSP 36 (1988) 1445-1453), gives an allocation together
with a bound below which no allocation comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvassay.errors import SearchError

MOST_CELLS = 40_000_000
"""Cells of the dynamic programme's table of choices, one byte each."""


class Choice(NamedTuple):
    """What a unit stores and loses under one codec."""

    nbytes: int
    loss: float
    """Isolated KL in nats per token; any finite number."""


class Allocation(NamedTuple):
    """One choice a unit."""

    chosen: tuple[int, ...]
    """Index into each unit's choices."""
    nbytes: int
    loss: float
    """Sum of the chosen losses."""
    bound: float
    """No allocation within the budget has a smaller sum, up to rounding; equal to `loss` where the answer is exact."""
    method: str
    """`exact` or `convex hull`."""


def allocate(units: Sequence[Sequence[Choice]], budget: int, most_cells: int = MOST_CELLS) -> Allocation:
    """The least sum of losses of at most `budget` bytes; a larger budget never gives a larger sum by one method.

    Raises SearchError where even the cheapest choices exceed the budget, or the exact method would serve but a unit has
    no choice.
    """
    if not units or any(not choices for choices in units):
        raise SearchError("every unit needs at least one choice, and there must be a unit")
    least = sum(min(choice.nbytes for choice in choices) for choices in units)
    if least > budget:
        raise SearchError(
            f"the cheapest choices store {least:,} bytes and the budget is {budget:,}; raise it, or give the ladder "
            "a narrower width"
        )
    step = math.gcd(*(c.nbytes - min(o.nbytes for o in choices) for choices in units for c in choices))
    steps = 0 if step == 0 else (budget - least) // step
    # More than every unit can take is as good as all of it.
    steps = min(steps, sum((max(c.nbytes for c in choices) - min(c.nbytes for c in choices)) // (step or 1)
                           for choices in units))  # fmt: skip
    if len(units) * (steps + 1) <= most_cells and max(map(len, units)) <= 256:
        return _exact(units, least, step, steps)
    return _on_hull(units, budget)


def _exact(units: Sequence[Sequence[Choice]], least: int, step: int, steps: int) -> Allocation:
    """`best[w]`: the least loss of the units so far with at most w steps above their cheapest choices."""
    best = np.zeros(steps + 1)
    table = np.zeros((len(units), steps + 1), np.uint8)
    for unit, choices in enumerate(units):
        cheapest = min(choice.nbytes for choice in choices)
        found = np.full(steps + 1, np.inf)
        # The cheaper of two equal losses comes first and stays.
        for index in sorted(range(len(choices)), key=lambda each: choices[each].nbytes):
            extra = 0 if step == 0 else (choices[index].nbytes - cheapest) // step
            if extra > steps:
                continue
            total = best[: steps + 1 - extra] + choices[index].loss
            better = total < found[extra:]
            found[extra:][better] = total[better]
            table[unit, extra:][better] = index
        best = found
    place = int(np.argmin(best))  # the first of equal ones stores least
    loss = float(best[place])
    chosen = [0] * len(units)
    for unit in range(len(units) - 1, -1, -1):
        choices, chosen[unit] = units[unit], int(table[unit, place])
        if step:
            place -= (choices[chosen[unit]].nbytes - min(choice.nbytes for choice in choices)) // step
    nbytes = sum(units[unit][index].nbytes for unit, index in enumerate(chosen))
    assert nbytes >= least, "choices are never cheaper than the cheapest"
    return Allocation(tuple(chosen), nbytes, loss, loss, "exact")


class _Move(NamedTuple):
    """From one vertex of a unit's hull to the next, more expensive one."""

    slope: float
    """Loss a byte; negative, and rising along a hull."""
    unit: int
    place: int
    to: int
    nbytes: int
    loss: float


def _on_hull(units: Sequence[Sequence[Choice]], budget: int) -> Allocation:
    """Steepest moves first, until one does not fit: so a larger budget takes the same moves and more."""
    hulls = [_hull(choices) for choices in units]
    chosen = [hull[0] for hull in hulls]
    nbytes = sum(units[unit][index].nbytes for unit, index in enumerate(chosen))
    loss = math.fsum(units[unit][index].loss for unit, index in enumerate(chosen))
    moves = sorted(
        _Move(
            (units[unit][after].loss - units[unit][before].loss)
            / (units[unit][after].nbytes - units[unit][before].nbytes),
            unit,
            place,
            after,
            units[unit][after].nbytes - units[unit][before].nbytes,
            units[unit][after].loss - units[unit][before].loss,
        )
        for unit, hull in enumerate(hulls)
        for place, (before, after) in enumerate(pairwise(hull))
    )
    bound = None
    for move in moves:
        if nbytes + move.nbytes > budget:
            # The relaxed problem takes the part of the move that fits.
            bound = loss + move.slope * (budget - nbytes)
            break
        chosen[move.unit] = move.to
        nbytes += move.nbytes
        loss += move.loss
    return Allocation(tuple(chosen), nbytes, loss, loss if bound is None else bound, "convex hull")


def _hull(choices: Sequence[Choice]) -> list[int]:
    """Indices on the lower convex hull of (bytes, loss), cheapest first, each losing less than the one before."""
    ordered = sorted(range(len(choices)), key=lambda index: (choices[index].nbytes, choices[index].loss))
    hull: list[int] = []
    for index in ordered:
        if hull and choices[index].loss >= choices[hull[-1]].loss:
            continue
        while len(hull) >= 2 and not _turns_up(choices[hull[-2]], choices[hull[-1]], choices[index]):
            hull.pop()
        hull.append(index)
    return hull


def _turns_up(first: Choice, middle: Choice, last: Choice) -> bool:
    """True where the slope from middle to last is flatter than the one before it."""
    before = (middle.loss - first.loss) * (last.nbytes - middle.nbytes)
    after = (last.loss - middle.loss) * (middle.nbytes - first.nbytes)
    return after > before
