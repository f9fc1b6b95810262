"""Names of slices. A row may lie in several: its `slice` cell joins their labels with commas.

A label is a plain name (`hansard`) or says along what it cuts: `depth=early`, `tokens=1024`, `language=de`.
"""

from __future__ import annotations

from collections.abc import Iterable

ALL = "all"
"""The slice that holds every row."""


def slice_cell(labels: Iterable[str]) -> str:
    """What a row's `slice` column holds; raises ValueError for labels that could not be told apart again."""
    found = list(labels)
    for label in found:
        if not label or "," in label or label != label.strip():
            raise ValueError(f"found the slice label {label!r}; expected a name without commas or outer spaces")
    return ",".join(found)


def slice_labels(cell: str) -> tuple[str, ...]:
    """The labels of a row, from its `slice` cell."""
    return tuple(cell.split(","))
