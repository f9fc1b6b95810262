"""Numeric level: array, score, softmax-weight and output errors of captured layers, with keys, values or both replaced.

The worst cell leads: layer, KV head, document and side. An array's error never stands alone (R83): each row shows it
beside the output error of the same cell, and the mean over all cells stands beside the worst one and never for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.core.clauses.numeric import SUBSTITUTED
from kvassay.core.records import TENSOR_COLUMNS, Arm, Role
from kvassay.pack.reader import PackContent
from kvassay.report.figures import NOT_RECORDED, Shown, number

SUBSTITUTED_WORDS = {"keys": "keys only", "values": "values only", "both": "keys and values"}
MEASURES = tuple(name for name, kind in TENSOR_COLUMNS.items() if kind == "float64")
_BADNESS = "output_relative"
"""Comparable between layers, heads and models, as an absolute error is not."""


class LayerError(NamedTuple):
    """The worst cell of one layer over its heads and the captured documents, and the mean over all of its cells."""

    arm: str
    substituted: str
    layer: int
    head: int
    document: str
    figures: dict[str, float | None]
    """By column; None where nothing was measured."""
    mean_relative: float | None
    """Of `output_relative` over the layer's cells."""
    cells: int
    is_exact: bool
    """True where no figure of any of its cells is other than zero."""

    @property
    def output_relative(self) -> float | None:
        return self.figures[_BADNESS]


class CellRow(NamedTuple):
    arm: str
    layer: int
    head: int
    document: str
    substituted: str
    figures: dict[str, Shown]
    mean_relative: Shown
    """Of the relative output error: over all cells with this side replaced, or over those of the layer alone."""


class ArmNumeric(NamedTuple):
    arm: str
    worst: tuple[CellRow, ...]
    """The worst cell of each substitution."""
    further: tuple[CellRow, ...]
    """The worst cells of the next layers with both sides replaced, worst first."""
    left_out: int
    sides: str
    """Keys alone against values alone, in words."""


class Numeric(NamedTuple):
    lead: CellRow | None
    """The worst cell of a candidate."""
    arms: tuple[ArmNumeric, ...]
    exact: tuple[str, ...]
    """Arms without any error, such as the reference against itself."""
    documents: int
    layers: int
    cells: int
    """Layers times heads of one document."""


def numeric_level(content: PackContent, errors: Sequence[LayerError], further_layers: int) -> Numeric:
    names = dict.fromkeys(error.arm for error in sorted(errors, key=_badness, reverse=True))
    inexact = {error.arm for error in errors if not error.is_exact}
    documents = len(set(content.tables.tensors.column("document").to_pylist()))
    of_one = max((sum(e.cells for e in errors if (e.arm, e.substituted) == (n, "both")) for n in names), default=0)
    return Numeric(
        lead=_lead(content.arms, [error for error in errors if error.arm in inexact]),
        arms=tuple(
            _arm(name, [error for error in errors if error.arm == name], further_layers)
            for name in names
            if name in inexact
        ),
        exact=tuple(name for name in names if name not in inexact),
        documents=documents,
        layers=len({error.layer for error in errors}),
        cells=of_one // max(1, documents),
    )


def layer_errors(content: PackContent) -> list[LayerError]:
    """All arms, layers and substitutions of the tensor rows, in the order arm, substituted, layer."""
    columns: dict[str, list[Any]] = content.tables.tensors.to_pydict()
    grouped: dict[tuple[str, str, int], list[int]] = {}
    keys = zip(columns["arm"], columns["substituted"], columns["layer"], strict=True)
    for index, key in enumerate(keys):
        grouped.setdefault(key, []).append(index)
    found: list[LayerError] = []
    for key, rows in sorted(grouped.items()):
        values = columns[_BADNESS]
        worst = max(rows, key=lambda row: (_rank(values[row]), -columns["head"][row], columns["document"][row]))
        known = [values[row] for row in rows if values[row] is not None]
        found.append(
            LayerError(
                *key,
                head=columns["head"][worst],
                document=columns["document"][worst],
                figures={name: columns[name][worst] for name in MEASURES},
                mean_relative=math.fsum(known) / len(known) if known else None,
                cells=len(rows),
                is_exact=not any(columns[name][row] for name in MEASURES for row in rows),
            )
        )
    return found


def _lead(arms: tuple[Arm, ...], errors: Sequence[LayerError]) -> CellRow | None:
    candidates = {arm.name for arm in arms if arm.role is Role.CANDIDATE}
    found = [error for error in errors if error.arm in candidates and error.substituted == "both"]
    return _row(max(found, key=_badness), None) if found else None


def _arm(name: str, errors: list[LayerError], further_layers: int) -> ArmNumeric:
    worst: dict[str, LayerError] = {}
    rows: list[CellRow] = []
    for substituted in SUBSTITUTED:
        if found := [error for error in errors if error.substituted == substituted]:
            worst[substituted] = max(found, key=_badness)
            rows.append(_row(worst[substituted], _mean(found)))
    both = sorted((error for error in errors if error.substituted == "both"), key=_badness, reverse=True)
    further = [error for error in both if error is not worst.get("both")]
    return ArmNumeric(
        name,
        tuple(rows),
        tuple(_row(error, error.mean_relative) for error in further[:further_layers]),
        max(0, len(further) - further_layers),
        _sides(worst.get("keys"), worst.get("values")),
    )


def _sides(keys: LayerError | None, values: LayerError | None) -> str:
    """Which side alone does more to the output (R81, R82), and whether it is the one with the larger array error."""
    of_keys, of_values = (None if error is None else error.output_relative for error in (keys, values))
    if keys is None or values is None or of_keys is None or of_values is None or math.isnan(of_keys + of_values):
        return ""
    if not of_keys or not of_values:
        side = "keys" if not of_keys else "values"
        return f"With {side} alone replaced no output moves."
    more, less = ("keys", "values") if of_keys >= of_values else ("values", "keys")
    ratio = max(of_keys, of_values) / min(of_keys, of_values)
    arrays = {"keys": keys.figures["reconstruction_relative"], "values": values.figures["reconstruction_relative"]}
    sentence = f"At its worst cell, {more} alone move the output {ratio:.2g} times as far as {less} alone do"
    larger, smaller = arrays[more], arrays[less]
    if larger is not None and smaller is not None and larger < smaller:
        sentence += f", though the array of {more} errs less there: an array's error does not say what it does"
    return f"{sentence}."


def _mean(errors: Sequence[LayerError]) -> float | None:
    known = [(error.mean_relative, error.cells) for error in errors if error.mean_relative is not None]
    total = sum(cells for _, cells in known)
    return math.fsum(mean * cells for mean, cells in known) / total if total else None


def _row(error: LayerError, mean_relative: float | None) -> CellRow:
    return CellRow(
        arm=error.arm,
        layer=error.layer,
        head=error.head,
        document=error.document,
        substituted=SUBSTITUTED_WORDS.get(error.substituted, error.substituted),
        figures={name: number(error.figures[name]) for name in MEASURES},
        mean_relative=NOT_RECORDED if mean_relative is None else number(mean_relative),
    )


def _badness(error: LayerError) -> float:
    return _rank(error.output_relative)


def _rank(value: float | None) -> float:
    """A figure that is no number is worst; one that was not measured comes last."""
    if value is None:
        return -math.inf
    return math.inf if math.isnan(value) else value
