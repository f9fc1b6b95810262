"""Names of slices. A row may lie in several: its `slice` cell joins their labels with commas.

A label is a plain name (`hansard`) or says along what it cuts: `depth=early`, `tokens=1024`, `language=de`. Most labels
are a document's or an item's. Some are a token's: `role=assistant` of a conversation stands in the rows, the derived
ones (`core.derived_slices`) do not and are computed from the rows' figures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

ALL = "all"
"""The slice that holds every row."""

ROLE = "role="
"""Labels that a document's tokens have one by one: whose turn of a conversation the true next token belongs to."""
ASSISTANT = f"{ROLE}assistant"


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


def document_cell(cell: str) -> str:
    """The part of a row's cell that all rows of its document share."""
    return ",".join(label for label in slice_labels(cell) if not label.startswith(ROLE))


def document_shares(documents: int, cells: Collection[str]) -> dict[str, int]:
    """How many of `documents` each kind of text gives: equal shares, the first cells by name one more each."""
    ordered = sorted(set(cells))
    return {cell: documents // len(ordered) + (index < documents % len(ordered)) for index, cell in enumerate(ordered)}
