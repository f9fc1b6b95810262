"""Clauses on captured tensors. The cluster is the document, whose figure is its worst cell over layers and KV heads.

The worst cell is no estimate of an average head: it is what the document suffers where it suffers most, and a mean of
it over documents is a mean over independent draws like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.clauses.numeric import (
    FIGURE_UNITS,
    FIGURE_WORDS,
    SLICES,
    SUBSTITUTED,
    NumericBound,
    in_slice,
    slices_of,
)
from kvassay.core.contract import Contract
from kvassay.core.kv_format import KVFormat
from kvassay.core.slices import ALL
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, Details, judge_clusters
from kvassay.judge.judged import JudgedClause
from kvassay.judge.pairing import Faults
from kvassay.judge.rows import Integers, TensorRows, TensorTable
from kvassay.judge.wording import listed

LEVEL = "numeric"


class TensorSlices(NamedTuple):
    """An arm's cells, and which of them lie in which slice."""

    rows: TensorRows
    sides: tuple[str, ...]
    """What the codes of `rows.substituted` stand for."""
    masks: Mapping[str, NDArray[np.bool_]]

    def coded(self, kv_format: KVFormat) -> NDArray[np.bool_]:
        """Which cells have a replaced side that the format stores in codes."""
        rows = self.rows
        heads, place = np.unique(np.stack((rows.layer, rows.head), axis=1), axis=0, return_inverse=True)
        stored = [[not spec.is_exact for spec in kv_format.specs_at(*head)] for head in heads.tolist()]
        by_side = {
            "keys": np.array([keys for keys, _ in stored], dtype=np.bool_),
            "values": np.array([values for _, values in stored], dtype=np.bool_),
        }
        by_code = np.stack([by_side.get(side, by_side["keys"] | by_side["values"]) for side in self.sides])
        return by_code[rows.substituted, place]


def tensor_slices(table: TensorTable, rows: TensorRows) -> TensorSlices:
    return TensorSlices(rows, table.sides, {label: _in_slice(table, rows, label) for label in SLICES})


def numeric_clauses(
    contract: Contract, table: TensorTable, rows: TensorRows | None, faults: tuple[str, ...]
) -> Iterator[JudgedClause]:
    """Verdicts of every numeric clause: with both sides replaced over all layers, then for each slice.

    Slices that the contract names decide, others describe. `faults` are reasons why the rows may not be used.
    """
    for name, bound in contract.numeric.bounds.items():
        for label in (ALL, *slices_of(name)):
            yield _judge(contract, _clause(contract, name, bound, label), table, rows, faults)


def tensor_faults(table: TensorTable) -> Faults:
    """Why an arm's cells may not be used: doubled, missing, of copied documents, or impossible.

    Every arm needs every document that some arm has, and of each all layers, heads and sides: without its worst cell a
    document would look better than it is.
    """
    if not table.arms:
        return {}
    grid = _grid(table)
    found = {arm: tuple(_arm_faults(table, rows, grid)) for arm, rows in table.arms.items()}
    return {arm: faults for arm, faults in found.items() if faults}


class _Grid(NamedTuple):
    """Cells that a document must have, as keys."""

    layers: int
    heads: int
    """Of the layer that has most."""
    cells: Integers
    """Rising."""
    gap: str | None

    def keys(self, table: TensorTable, rows: TensorRows) -> Integers:
        """A key of each row within its document; sides that do not exist come after all that do."""
        sides = np.array([SUBSTITUTED.index(s) if s in SUBSTITUTED else len(SUBSTITUTED) for s in table.sides])
        return (sides[rows.substituted] * self.layers + rows.layer) * self.heads + rows.head

    def words(self, key: int) -> str:
        place, head = divmod(key, self.heads)
        side, layer = divmod(place, self.layers)
        return f"layer {layer}, head {head}, {SUBSTITUTED[side]} replaced"


def _grid(table: TensorTable) -> _Grid:
    layer = np.concatenate([rows.layer for rows in table.arms.values()])
    head = np.concatenate([rows.head for rows in table.arms.values()])
    pairs = np.unique(np.stack((layer, head), axis=1), axis=0)
    layers, heads = int(pairs[:, 0].max()) + 1, int(pairs[:, 1].max()) + 1
    counts = np.bincount(pairs[:, 0], minlength=layers)
    gap = None
    if len(empty := np.flatnonzero(counts == 0)):
        gap = f"no arm has rows of layer {int(empty[0])}, though of layer {layers - 1}"
    else:
        last = np.maximum.reduceat(pairs[:, 1], np.cumsum(counts) - counts)
        if len(odd := np.flatnonzero(last + 1 != counts)):
            first = int(odd[0])
            gap = f"layer {first} has a row of head {int(last[first])}, and of {int(counts[first])} heads only"
    cells = np.concatenate([(side * layers + pairs[:, 0]) * heads + pairs[:, 1] for side in range(len(SUBSTITUTED))])
    return _Grid(layers, heads, np.sort(cells), gap)


def _arm_faults(table: TensorTable, rows: TensorRows, grid: _Grid) -> Iterator[str]:
    if grid.gap is not None:
        yield grid.gap
    if unknown := [side for side in table.sides if side not in SUBSTITUTED]:
        yield f"replaced sides are {listed(unknown)}, expected {listed(list(SUBSTITUTED))}"
        return
    keys = grid.keys(table, rows)
    starts = np.flatnonzero(np.diff(rows.document, prepend=-1))
    ends = [*starts[1:].tolist(), rows.size]
    seen: set[int] = set()
    for begin, end in zip(starts.tolist(), ends, strict=True):
        code = int(rows.document[begin])
        seen.add(code)
        distinct, times = np.unique(keys[begin:end], return_counts=True)
        if (times > 1).any():
            yield f"document {table.documents[code]!r} has {grid.words(int(distinct[times > 1][0]))} twice"
        lacking = np.setdiff1d(grid.cells, distinct)
        if len(lacking):
            yield (
                f"document {table.documents[code]!r} lacks {len(lacking)} of {len(grid.cells)} cells, first "
                f"{grid.words(int(lacking[0]))}"
            )
    if missing := [name for code, name in enumerate(table.documents) if code not in seen]:
        yield f"not paired: lacks the other arms' documents {listed(missing)}"
    yield from _copies(table, rows, starts.tolist(), ends)
    for name, values in rows.figures.items():
        if negative := int(np.count_nonzero(values < 0)):
            yield f"{name} is negative in {negative} of {rows.size} rows"
    moved = rows.take(rows.substituted == table.sides.index("values")) if "values" in table.sides else None
    if moved is not None and np.any(moved.figures["score_max_abs"] > 0):
        yield "a score moved with only values replaced, which take no part in it"


def _copies(table: TensorTable, rows: TensorRows, starts: list[int], ends: list[int]) -> Iterator[str]:
    """Two texts never err alike in every digit of every cell; arms without any error have nothing to tell them by."""
    figures = np.stack(list(rows.figures.values()))
    first: dict[bytes, int] = {}
    for begin, end in zip(starts, ends, strict=True):
        part = np.nan_to_num(figures[:, begin:end])
        code = int(rows.document[begin])
        original = first.setdefault(part.tobytes(), code)
        if original != code and part.any():
            yield (
                f"documents {table.documents[original]!r} and {table.documents[code]!r} have equal figures in every "
                "cell: copies are not independent"
            )
            return


def _clause(contract: Contract, name: str, bound: NumericBound, label: str) -> ClusterClause:
    where = {"substituted": "with {} alone replaced", "layers": "over the {} third of layers"}
    kind, _, part = label.partition("=")
    words = f"mean over documents of the worst cell's {FIGURE_WORDS[name]}"
    return ClusterClause(
        level=LEVEL,
        name=name,
        limit=bound.max,
        unit=FIGURE_UNITS[name],
        words=f"{words} {where[kind].format(part)}" if kind in where else words,
        planned=contract.numeric.documents,
        minimum=bound.min_docs,
        row_unit="documents",
        slice=label,
        decisive=label == ALL or label in bound.slices,
    )


def _judge(
    contract: Contract, clause: ClusterClause, table: TensorTable, rows: TensorRows | None, faults: tuple[str, ...]
) -> JudgedClause:
    if rows is None:
        return judge_clusters(contract, clause, None)
    part = rows.take(_in_slice(table, rows, clause.slice))
    if clause.name == "reconstruction_relative":
        # A layer whose window is shorter than the format's recent tokens stores nothing that a query could read.
        part = part.take(~(np.isnan(part.figures[clause.name]) & (part.stored_reads == 0)))
    if not part.size:
        return judge_clusters(contract, clause, None)
    values = part.figures[clause.name]
    unusable = int(np.count_nonzero(~np.isfinite(values)))
    missing = (f"{FIGURE_WORDS[clause.name]} is missing or not finite in {unusable} of {part.size} cells",)
    starts = np.flatnonzero(np.diff(part.document, prepend=-1))
    worst = np.maximum.reduceat(values, starts)  # NaN where a cell of the document is NaN
    found = ClusterRows(worst, part.document[starts])
    all_faults = (*faults, *(missing if unusable else ()))
    return judge_clusters(contract, clause, found, all_faults, {} if all_faults else _details(table, part, values))


def _in_slice(table: TensorTable, rows: TensorRows, label: str) -> NDArray[np.bool_]:
    layers = 1 + max(int(found.layer.max(initial=0)) for found in table.arms.values())
    holding = np.array(
        [[in_slice(label, side, layer, layers) for layer in range(layers)] for side in table.sides], dtype=np.bool_
    )
    return holding[rows.substituted, rows.layer]


def _details(table: TensorTable, part: TensorRows, values: NDArray[np.float64]) -> Details:
    """The worst cell of all documents, and beside it the mean over cells, which alone would hide it (R93)."""
    worst = int(np.argmax(values))
    return {
        "worst_cell": float(values[worst]),
        "worst_document": table.documents[int(part.document[worst])],
        "worst_layer": int(part.layer[worst]),
        "worst_head": int(part.head[worst]),
        "mean_over_cells": math.fsum(values.tolist()) / len(values),
    }
