"""Numeric level: array, score, softmax-weight and output errors of captured layers, with keys, values or both replaced.

The worst layer leads. An array's error never stands alone (R83): each row shows it beside the output error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.core.records import TENSOR_COLUMNS
from kvassay.pack.reader import PackContent
from kvassay.report.figures import Shown, number

SUBSTITUTED = ("both", "keys", "values")
SUBSTITUTED_WORDS = {"keys": "keys only", "values": "values only", "both": "keys and values"}
MEASURES = tuple(name for name, kind in TENSOR_COLUMNS.items() if kind == "float64")


class LayerError(NamedTuple):
    """Errors of one layer, each the largest over the captured documents; None where none was measured."""

    arm: str
    substituted: str
    layer: int
    documents: int
    reconstruction_rmse: float | None
    reconstruction_relative: float | None
    score_max_abs: float | None
    weight_max_abs: float | None
    output_max_abs: float | None
    output_rmse: float | None
    output_relative: float | None


_FIRST_MEASURE = LayerError._fields.index(MEASURES[0])


class LayerRow(NamedTuple):
    layer: int
    substituted: str
    figures: dict[str, Shown]


class ArmNumeric(NamedTuple):
    arm: str
    worst: tuple[LayerRow, ...]
    """The worst layer of each substitution."""
    further: tuple[LayerRow, ...]
    """The next layers with both sides replaced, worst first."""
    left_out: int


class Numeric(NamedTuple):
    arms: tuple[ArmNumeric, ...]
    exact: tuple[str, ...]
    """Arms without any error, such as the reference against itself."""
    documents: int
    layers: int


def numeric_level(errors: Sequence[LayerError], further_layers: int) -> Numeric:
    names = dict.fromkeys(error.arm for error in sorted(errors, key=_badness, reverse=True))
    inexact = {error.arm for error in errors if any(error[_FIRST_MEASURE:])}
    return Numeric(
        arms=tuple(
            _arm(name, [error for error in errors if error.arm == name], further_layers)
            for name in names
            if name in inexact
        ),
        exact=tuple(name for name in names if name not in inexact),
        documents=max((error.documents for error in errors), default=0),
        layers=len({error.layer for error in errors}),
    )


def layer_errors(content: PackContent) -> list[LayerError]:
    """All arms, layers and substitutions of the tensor rows, in the order arm, substituted, layer."""
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in content.tables.tensors.to_pylist():
        grouped.setdefault((row["arm"], row["substituted"], row["layer"]), []).append(row)
    return [
        LayerError(*key, len(rows), **{name: _largest(rows, name) for name in MEASURES})
        for key, rows in sorted(grouped.items())
    ]


def _largest(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    # max() would skip a NaN or return it by its place in the list; here one bad document marks the layer.
    return math.nan if any(math.isnan(value) for value in values) else max(values, default=None)


def _arm(name: str, errors: list[LayerError], further_layers: int) -> ArmNumeric:
    worst = [
        max(found, key=_badness)
        for substituted in SUBSTITUTED
        if (found := [error for error in errors if error.substituted == substituted])
    ]
    both = sorted((error for error in errors if error.substituted == "both"), key=_badness, reverse=True)
    further = [error for error in both if error not in worst]
    return ArmNumeric(
        name,
        tuple(_row(error) for error in worst),
        tuple(_row(error) for error in further[:further_layers]),
        max(0, len(further) - further_layers),
    )


def _row(error: LayerError) -> LayerRow:
    figures = {name: number(getattr(error, name)) for name in MEASURES}
    return LayerRow(error.layer, SUBSTITUTED_WORDS.get(error.substituted, error.substituted), figures)


def _badness(error: LayerError) -> float:
    """By relative output error: it is comparable between layers. A figure that is no number is worst."""
    value = error.output_relative
    if value is None:
        return -math.inf
    return math.inf if math.isnan(value) else value
