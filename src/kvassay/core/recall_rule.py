"""The recall task as far as it needs no tokenizer: what item N of a seed asks, and when an answer is right.

The workload builds its items from this and the judge checks rows against it, so that a row cannot claim another item,
a copy of one, or another result than its own answer shows.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.digest import sha256_bytes

TASK = "recall"
DEPTHS = ("early", "middle", "late")
"""Slices: the third of the list in which the asked line stands."""


class RecallDraw(NamedTuple):
    """What is drawn for one item; the words of its list depend on the tokenizer and are drawn by the workload."""

    id: str
    numbers: tuple[int, ...]
    """Of the lines in order, all different."""
    asked: int
    """Index of the line that is asked for."""

    @property
    def expected(self) -> str:
        return str(self.numbers[self.asked])

    @property
    def slice(self) -> str:
        return DEPTHS[self.asked * len(DEPTHS) // len(self.numbers)]


def recall_draw(seed: int, index: int, context_lines: int) -> RecallDraw:
    """Item `index` of the sequence of a seed; the same on every machine and for every model."""
    key = f"{seed}/{index}"
    numbers: list[int] = []
    for attempt in range(100 * context_lines):
        number = 1000 + draw(key, "number", str(attempt)) % 9000
        if number not in numbers:
            numbers.append(number)
        if len(numbers) == context_lines:
            break
    return RecallDraw(f"{TASK}/{key}", tuple(numbers), draw(key, "asked", "") % context_lines)


def draw(key: str, what: str, which: str) -> int:
    """A random number that is the same with every Python; `random` promises that only for some of its methods."""
    return int(sha256_bytes(f"kvassay.recall/1/{key}/{what}/{which}".encode()), 16)


def is_right(answer: str, expected: str) -> bool:
    """Whether an answer counts: the most likely tokens at the answer's positions say the true answer's very text."""
    return answer == expected
