"""Relative output error of every layer as a heat map, with keys, values or both replaced.

A layer shows its worst KV head: it is as good as the head that lost most.
"""

from __future__ import annotations

import math
from typing import Any

from kvassay.report.chart_frame import NARROW, Spec, bar_label, framed
from kvassay.report.figures import significant
from kvassay.report.findings import Findings
from kvassay.report.numeric_level import LayerError
from kvassay.report.palette import HEAT, INK, MUTED
from kvassay.report.visible_text import visible

MAX_CELLS = 1200
"""Beyond this the arms with the smallest errors are left out, so that the page stays small."""

_SIDES = ("keys", "values", "both")
_ARM_ROWS = 4.3
_ROW_PIXELS = 17
_EXACT = "exact (0)"


def layer_chart(findings: Findings, width: int) -> Spec | None:
    """None where no layer has a relative output error. Arms that are exact everywhere are left out."""
    errors = [
        error
        for error in findings.layers
        if error.substituted in _SIDES and error.output_relative is not None and math.isfinite(error.output_relative)
    ]
    positive = [error.output_relative for error in errors if error.output_relative and error.output_relative > 0]
    if not positive:
        return None
    arms = _arms(errors)
    edges = _edges(min(positive), max(positive))
    bands = [_EXACT, *(_band(edges, level) for level in range(len(HEAT)))]
    rows: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for index, arm in enumerate(arms):
        top = index * _ARM_ROWS
        names.append({"name": bar_label(arm, width), "top": top + 0.9})
        rows.extend(_cell(error, top, edges, bands) for error in errors if error.arm == arm)
    sides = [
        {"side": side if width > NARROW else {"keys": "K", "values": "V", "both": "K+V"}[side], "middle": top + 1.5 + i}
        for top in (index * _ARM_ROWS for index in range(len(arms)))
        for i, side in enumerate(_SIDES)
    ]
    height = _ARM_ROWS * len(arms)
    return framed(width, round(height * _ROW_PIXELS), rows, layer=_layers(rows, names, sides, bands, height, width))


def arms_left_out(findings: Findings) -> int:
    """Arms with errors that the chart does not draw."""
    errors = [error for error in findings.layers if error.output_relative]
    return len({error.arm for error in errors}) - len(_arms(errors))


def _arms(errors: list[LayerError]) -> list[str]:
    """Arms with any error, the worst first, as many as the cells allow."""
    worst: dict[str, float] = {}
    for error in errors:
        worst[error.arm] = max(worst.get(error.arm, 0.0), error.output_relative or 0.0)
    ordered = sorted((arm for arm, value in worst.items() if value > 0), key=lambda arm: -worst[arm])
    cells = max(1, len({error.layer for error in errors}) * len(_SIDES))
    return ordered[: max(1, MAX_CELLS // cells)]


def _edges(low: float, high: float) -> list[float]:
    """Bounds of the colour bands, equal steps of the logarithm."""
    low = max(low, high * 1e-4)
    if low == high:
        low = high / 10
    return [low * (high / low) ** (step / len(HEAT)) for step in range(len(HEAT) + 1)]


def _band(edges: list[float], level: int) -> str:
    start = "below" if level == 0 else f"{significant(edges[level], 2)} to"
    return f"{start} {significant(edges[level + 1], 2)}"


def _cell(error: LayerError, top: float, edges: list[float], bands: list[str]) -> dict[str, Any]:
    value = error.output_relative or 0.0
    level = sum(value > edge for edge in edges[1:-1])
    row = top + 1 + _SIDES.index(error.substituted)
    return {
        "arm": visible(error.arm),
        "substituted": error.substituted,
        "layer": error.layer,
        "head": error.head,
        "document": visible(error.document),
        "left": error.layer - 0.5,
        "right": error.layer + 0.5,
        "output_relative": value,
        "band": bands[0] if value == 0 else bands[1 + level],
        "top": row,
        "bottom": row + 0.92,
    }


def _layers(
    rows: list[dict[str, Any]],
    names: list[dict[str, Any]],
    sides: list[dict[str, Any]],
    bands: list[str],
    height: float,
    width: int,
) -> list[Spec]:
    present = [band for band in bands if any(row["band"] == band for row in rows)]
    colours = dict(zip(bands, ["transparent", *(colour.light for colour in HEAT)], strict=True))
    layers = max(row["layer"] for row in rows) + 1
    y = {"type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None}
    x = {
        "type": "quantitative",
        "title": "layer",
        "scale": {"domain": [-0.5, layers - 0.5], "nice": False},
        "axis": {"tickCount": 10 if width > NARROW else 5, "tickMinStep": 1, "grid": False, "format": "d"},
    }
    return [
        {
            "mark": {"type": "rect", "strokeWidth": 1 if width / layers >= 6 else 0},
            "encoding": {
                "x": {**x, "field": "left"},
                "x2": {"field": "right"},
                "y": {**y, "field": "top"},
                "y2": {"field": "bottom"},
                "color": {
                    "field": "band",
                    "type": "nominal",
                    "title": "relative output error",
                    "scale": {"domain": present, "range": [colours[band] for band in present]},
                    "legend": {
                        "orient": "bottom",
                        "columns": 2 if width == NARROW else 4,
                        "symbolType": "square",
                        "symbolStrokeColor": MUTED.light,
                        "symbolStrokeWidth": 1,
                    },
                },
            },
        },
        {
            "data": {"name": "names", "values": names},
            "mark": {"type": "text", "align": "left", "baseline": "bottom", "fill": INK.light},
            "encoding": {"x": {**x, "datum": -0.5}, "y": {**y, "field": "top"}, "text": {"field": "name"}},
        },
        {
            "data": {"name": "sides", "values": sides},
            "mark": {
                "type": "text",
                "align": "right",
                "baseline": "middle",
                "dx": -5,
                "fontSize": 11,
                "fill": INK.light,
            },
            "encoding": {"x": {**x, "datum": -0.5}, "y": {**y, "field": "middle"}, "text": {"field": "side"}},
        },
    ]
