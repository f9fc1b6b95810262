"""What a contract may set of a task, and along what its items are cut into slices."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

DEPTHS = ("early", "middle", "late")
"""The third of the context in which the asked entry stands."""
LANGUAGES = ("en", "de", "fr", "es")
RARITIES = ("common", "rare")

Cell = tuple[tuple[str, str], ...]
"""One combination of the axes: `(("tokens", "512"), ("depth", "early"))`."""


class TaskSettings(NamedTuple):
    """Of one task. Axes that its kind has not are empty; so an item lies in one slice of each axis that is not."""

    kind: str
    context_lines: int | None = None
    """Length by lines, for lists only, in place of `context_tokens`."""
    context_tokens: tuple[int, ...] = ()
    depths: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    rarities: tuple[str, ...] = ()
    hops: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    keys: int | None = None
    values: int | None = None
    lines: tuple[int, ...] = ()
    """Of an answer, for long generation."""

    @property
    def axes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and values of each axis."""
        named = {
            "tokens": self.context_tokens,
            "depth": self.depths,
            "language": self.languages,
            "rarity": self.rarities,
            "hops": self.hops,
            "steps": self.steps,
            "lines": self.lines,
        }
        return tuple((name, tuple(map(str, values))) for name, values in named.items() if values)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of all slices, e.g. `tokens=512`, `depth=early`."""
        return tuple(f"{name}={value}" for name, values in self.axes for value in values)


def cell_of(settings: TaskSettings, index: int) -> Cell:
    """The combination of axes that item `index` has."""
    cells = _ordered_cells(settings)
    return cells[index % len(cells)]


def cell_labels(cell: Cell) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in cell)


def planned_in_slice(settings: TaskSettings, label: str, first: int, count: int) -> int:
    """How many of the items `first` to `first + count − 1` lie in a slice."""
    cells = _ordered_cells(settings)
    per_round = sum(label in cell_labels(cell) for cell in cells)
    rounds, rest = divmod(count, len(cells))
    tail = sum(label in cell_labels(cells[(first + offset) % len(cells)]) for offset in range(rest))
    return rounds * per_round + tail


@lru_cache(maxsize=64)
def _ordered_cells(settings: TaskSettings) -> tuple[Cell, ...]:
    """All combinations once, in an order whose beginnings are spread evenly over every axis.

    Always the combination whose values were used least so far; so a few items already cover every slice.
    """
    axes = settings.axes
    left: list[Cell] = [
        tuple(zip((name for name, _ in axes), values, strict=True)) for values in product(*(v for _, v in axes))
    ]
    used = {pair: 0 for name, values in axes for pair in ((name, value) for value in values)}
    ordered: list[Cell] = []
    while left:
        cell = min(left, key=lambda one: sum(used[pair] for pair in one))
        left.remove(cell)
        ordered.append(cell)
        for pair in cell:
            used[pair] += 1
    return tuple(ordered)
