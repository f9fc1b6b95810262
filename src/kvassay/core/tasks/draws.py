"""Draws that are the same on every machine: Python's `random` promises equal streams for some of its methods only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

from kvassay.core.digest import sha256_bytes

Option = TypeVar("Option")

_SHARE_STEPS = 1 << 32


class Draws(NamedTuple):
    """Random values by name: each is SHA-256 of the item and the name, so that none depends on what else was drawn."""

    key: str
    """Names the item, e.g. `recall/recall/7/12`."""

    def integer(self, what: str, low: int, high: int) -> int:
        """From `low` to `high`, both included."""
        return low + self._number(what) % (high - low + 1)

    def share(self, what: str) -> float:
        """In [0, 1)."""
        return self._number(what) % _SHARE_STEPS / _SHARE_STEPS

    def choice(self, what: str, options: Sequence[Option]) -> Option:
        return options[self._number(what) % len(options)]

    def shuffled(self, what: str, options: Sequence[str]) -> list[str]:
        return sorted(options, key=lambda option: self._number(f"{what}/{option}"))

    def integers(self, what: str, low: int, high: int, taken: Iterable[int] = ()) -> Iterator[int]:
        """Different integers from `low` to `high` without end, none of `taken`; the range must hold enough."""
        used = set(taken)
        for attempt in count():
            number = self.integer(f"{what}/{attempt}", low, high)
            if number not in used:
                used.add(number)
                yield number

    def _number(self, what: str) -> int:
        return int(sha256_bytes(f"kvassay.task/1/{self.key}/{what}".encode()), 16)
