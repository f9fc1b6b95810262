"""How much of a product of cases runs: a part in every run, all of it with KVASSAY_THOROUGH=1 (`make thorough`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

THOROUGH = os.environ.get("KVASSAY_THOROUGH") == "1"
_A = TypeVar("_A")
_B = TypeVar("_B")


def pairs(first: Sequence[_A], second: Sequence[_B], each: int = 1) -> list[tuple[_A, _B]]:
    """Every one of `first` with `each` of `second`, which take turns; with all of them in a thorough run."""
    if THOROUGH:
        return [(one, other) for one in first for other in second]
    count = len(second)
    return [
        (one, second[(index + shift * (count // each)) % count])
        for index, one in enumerate(first)
        for shift in range(each)
    ]


def some(cases: Sequence[_A], every: int) -> list[_A]:
    """Each `every`-th, or all in a thorough run."""
    return list(cases if THOROUGH else cases[::every])


def times(usual: int, thorough: int) -> int:
    """How often something random is drawn."""
    return thorough if THOROUGH else usual
