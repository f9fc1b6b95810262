"""Row tables of a pack as numpy columns and counts. The one place of the report that touches pyarrow's functions."""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from kvassay.pack.tables import ArrowTable


class Named(NamedTuple):
    """A text column: its distinct values in rising order, and each row's place among them."""

    names: list[str]
    codes: NDArray[np.int32]


class Reads(NamedTuple):
    """Stored tokens that the queries of an arm read; None where no row has the figure."""

    least: int | None
    mean: float | None
    most: int | None


def distinct(table: ArrowTable, column: str) -> list[Any]:
    """Values of a column that is never null, in rising order."""
    return sorted(table.column(column).unique().to_pylist())


def largest(table: ArrowTable, column: str) -> int | None:
    return pc.max(table.column(column)).as_py()


def figures(table: ArrowTable, column: str) -> NDArray[np.float64]:
    """A column of numbers or truth values; null is NaN."""
    return pc.fill_null(table.column(column).cast("float64"), math.nan).to_numpy()


def named(table: ArrowTable, column: str) -> Named:
    names = distinct(table, column)
    encoded = table.column(column).combine_chunks().dictionary_encode()
    places = np.array([names.index(name) for name in encoded.dictionary.to_pylist()], dtype=np.int32)
    return Named(names, places[encoded.indices.to_numpy(zero_copy_only=False)])


def stored_reads(table: ArrowTable) -> dict[str, Reads]:
    """By arm."""
    kinds = ("min", "mean", "max")
    grouped = table.select(["arm", "stored_reads"]).group_by("arm")
    rows = grouped.aggregate([("stored_reads", kind) for kind in kinds]).to_pylist()
    return {row["arm"]: Reads(*(row[f"stored_reads_{kind}"] for kind in kinds)) for row in rows}
