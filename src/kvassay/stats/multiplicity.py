"""Several tests at once: Holm's step-down correction and the fixed sequence.

S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979) 65-70.
Fixed sequence: P. Westfall and A. Krishen, Journal of Statistical Planning and Inference 99 (2001) 25-40. Both hold
the chance of any false claim at alpha, whatever the dependence between the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FixedSequence(NamedTuple):
    claims: tuple[bool, ...]
    """Per position: true where the claim stands, that is where it and all before it succeeded."""
    stopped_at: int | None
    """Position of the first that failed; None where none did."""


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p values in the order given; compare each with alpha."""
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError(f"p values must lie in [0, 1], found {list(p_values)}")
    count = len(p_values)
    adjusted = [0.0] * count
    running = 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = running
    return tuple(adjusted)


def fixed_sequence(succeeded: Sequence[bool]) -> FixedSequence:
    """Claims in a fixed order, each at full alpha, up to the first that fails."""
    stopped_at = next((index for index, success in enumerate(succeeded) if not success), None)
    standing = len(succeeded) if stopped_at is None else stopped_at
    return FixedSequence(tuple(index < standing for index in range(len(succeeded))), stopped_at)
