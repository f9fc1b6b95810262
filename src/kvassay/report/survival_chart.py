"""Survival of agreement: share of prompts whose outputs are still the reference's after t tokens, a strip an arm."""

from __future__ import annotations

from typing import Any

from kvassay.core.records import Role
from kvassay.report.chart_frame import Spec, bar_label, framed, texts
from kvassay.report.findings import Findings
from kvassay.report.free_running import ArmOutputs
from kvassay.report.palette import LIMIT, MUTED
from kvassay.report.visible_text import visible

MAX_ARMS = 12
"""Arms that are drawn beside the A/A arm, those that agree least first."""
_STRIP = 4.0
"""Height of the full share, in rows of text."""
_ROWS = 6.0
_ROW_PIXELS = 17


def survival_chart(findings: Findings, width: int) -> Spec | None:
    """None where no arm generated. Every strip shows the A/A arm, the noise floor of this level, as a dashed line."""
    again = [one for one in findings.outputs if one.role is Role.REFERENCE_AGAIN]
    others = sorted(
        (one for one in findings.outputs if one.role is not Role.REFERENCE_AGAIN),
        key=lambda one: (one.curve[-1].share, one.median_tokens or 0),
    )[:MAX_ARMS]
    if not others:
        return None
    rows: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    ticks: list[dict[str, Any]] = []
    for index, one in enumerate(others):
        top = index * _ROWS + 1.3
        names.append({"name": bar_label(one.arm, width), "row": top - 0.3})
        rows += _steps(one, top)
        floors += _steps(again[0], top, strip=one.arm) if again else []
        ticks += [{"share": f"{share}%", "row": top + _STRIP * (1 - share / 100)} for share in (0, 50, 100)]
    horizon = others[0].curve[-1].tokens
    height = len(others) * _ROWS
    layers = _layers(floors, names, ticks, horizon, height)
    return framed(width, round(height * _ROW_PIXELS), rows, layer=layers)


def _steps(one: ArmOutputs, top: float, strip: str | None = None) -> list[dict[str, Any]]:
    return [
        {
            "arm": visible(one.arm),
            "strip": visible(strip or one.arm),
            "prompts": one.prompts,
            "tokens": point.tokens,
            "equal": point.equal,
            "share": point.share,
            "low": point.interval.low,
            "high": point.interval.high,
            "row": top + _STRIP * (1 - point.share),
            "low_row": top + _STRIP * (1 - point.interval.low),
            "high_row": top + _STRIP * (1 - point.interval.high),
        }
        for point in one.curve
    ]


def _layers(
    floors: list[dict[str, Any]],
    names: list[dict[str, Any]],
    ticks: list[dict[str, Any]],
    horizon: int,
    height: float,
) -> list[Spec]:
    y = {"type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None}
    x = {
        "type": "quantitative",
        "title": "generated tokens",
        "scale": {"domain": [0, horizon], "nice": False},
        "axis": {"tickMinStep": 1, "grid": False, "format": "d"},
    }
    strip = {"detail": {"field": "strip", "type": "nominal"}}
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    layers: list[Spec] = [
        {
            "mark": {"type": "area", "interpolate": "step-after", "fill": LIMIT.light, "fillOpacity": 0.16},
            "encoding": {
                **strip,
                "x": {**x, "field": "tokens"},
                "y": {**y, "field": "low_row"},
                "y2": {"field": "high_row"},
            },
        },
        {
            "data": {"name": "reference again", "values": floors},
            "mark": {**line, "stroke": MUTED.light, "strokeDash": [6, 4], "strokeWidth": 1.5},
            "encoding": {**strip, "x": {**x, "field": "tokens"}, "y": {**y, "field": "row"}},
        },
        {
            "mark": {**line, "stroke": LIMIT.light},
            "encoding": {**strip, "x": {**x, "field": "tokens"}, "y": {**y, "field": "row"}},
        },
        {
            "data": {"name": "shares", "values": ticks},
            "mark": {
                "type": "text",
                "align": "right",
                "baseline": "middle",
                "dx": -5,
                "fontSize": 11,
                "fill": MUTED.light,
            },
            "encoding": {"x": {**x, "datum": 0}, "y": {**y, "field": "row"}, "text": {"field": "share"}},
        },
    ]
    if not floors:
        del layers[1]
    written = {"x": {**x, "datum": 0}, "y": {**y, "field": "row"}, "text": {"field": "name"}}
    rows = {"data": {"name": "names", "values": names}}
    return [*layers, *texts(rows, written, align="left", baseline="bottom", fontWeight="bold")]
