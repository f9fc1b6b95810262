"""The parts of an item's text. Only how much filler it takes depends on a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.settings import DEPTHS


class Entry(NamedTuple):
    """A piece of the context that the question is about."""

    position: float
    """Place among the units of filler as a share of them, in [0, 1)."""
    text: str


class Script(NamedTuple):
    """`heading`, filler with the entries in it, `ask`, `lead`, `expected`: the whole text of an item."""

    question: str
    """What is asked for in short, as the rows hold it."""
    expected: str
    heading: str
    entries: tuple[Entry, ...]
    ask: str
    filler: Callable[[Sequence[str]], Iterator[str]]
    """Units of filler, given the nouns in the order in which they may serve as keys. None of them gives the answer."""
    lead: str = " "
    """What stands between the question and the answer."""

    @property
    def answer(self) -> str:
        return self.lead + self.expected


Facts = dict[str, str]
"""The values of an item's axes by name: `{"tokens": "512", "depth": "early"}`."""


def asked_position(draws: Draws, facts: Facts) -> float:
    """Where the asked entry stands: in its third of the context, or anywhere if the task has no depths."""
    share = draws.share("position")
    depth = facts.get("depth")
    return share if depth is None else (DEPTHS.index(depth) + share) / len(DEPTHS)


def ascending_positions(draws: Draws, what: str, count: int) -> list[float]:
    """Places for sentences that stand in a fixed order."""
    return sorted(draws.share(f"position/{what}/{which}") for which in range(count))
