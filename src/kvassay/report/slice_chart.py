"""Mean KL of every slice with its interval, arm by arm on one scale."""

from __future__ import annotations

from typing import Any

from kvassay.report.chart_frame import Spec, bar_label, decades, finite, framed, texts
from kvassay.report.findings import Findings
from kvassay.report.palette import LIMIT, MUTED
from kvassay.report.visible_text import visible

MAX_ROWS = 240
"""Slices of all arms that are drawn, worst first."""
_ROW_PIXELS = 17


def slice_chart(findings: Findings, width: int) -> Spec | None:
    """None where the rows have one slice only, or no positive KL."""
    found = [one for one in findings.kl_by_slice if one.mean_nats is not None and one.mean_nats > 0][:MAX_ROWS]
    if not found:
        return None
    means = [one.mean_nats for one in found if one.mean_nats is not None]
    bound = findings.content.contract.fidelity.kl_mean
    limit = bound.max if bound else None
    ends = [min(means), max(means), *([limit] if limit else [])]
    ends += [u for one in found if (u := one.upper_nats) is not None and u <= 10 * max(means)]
    ticks = decades(min(ends) * 0.999, max(ends) * 1.001)
    rows: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    row = 0.0
    for arm in dict.fromkeys(one.arm for one in found):
        names.append({"name": bar_label(arm, width), "row": row + 0.9, "kind": "arm"})
        row += 1.3
        for one in (one for one in found if one.arm == arm):
            names.append({"name": bar_label(one.slice, width), "row": row + 0.75, "kind": "slice"})
            low, high = finite(one.lower_nats), finite(one.upper_nats)
            rows.append(
                {
                    "arm": visible(arm),
                    "slice": visible(one.slice),
                    "documents": one.documents,
                    "kl_mean_nats": one.mean_nats,
                    "lower_nats": low,
                    "upper_nats": high,
                    "drawn_lower_nats": max(ticks[0], low if low is not None else one.mean_nats or 0.0),
                    "drawn_upper_nats": min(ticks[-1], high if high is not None else one.mean_nats or 0.0),
                    "row": row + 1.15,
                }
            )
            row += 1.7
        row += 0.5
    layers = _layers(names, ticks, row, width, limit)
    return framed(width, round(row * _ROW_PIXELS), rows, layer=layers)


def _layers(
    names: list[dict[str, Any]], ticks: list[float], height: float, width: int, limit: float | None
) -> list[Spec]:
    y = {"type": "quantitative", "scale": {"domain": [height, 0], "nice": False}, "axis": None}
    x = {
        "type": "quantitative",
        "title": "mean KL, nats per token (log scale)",
        "scale": {"type": "log", "domain": [ticks[0], ticks[-1]], "nice": False},
        "axis": {"values": ticks, "format": "~g"},
    }
    left = {**x, "datum": ticks[0]}
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "stroke": MUTED.light},
            "encoding": {
                "x": {**x, "field": "drawn_lower_nats"},
                "x2": {"field": "drawn_upper_nats"},
                "y": {**y, "field": "row"},
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "fill": LIMIT.light},
            "encoding": {"x": {**x, "field": "kl_mean_nats"}, "y": {**y, "field": "row"}},
        },
    ]
    if limit is not None:
        layers.insert(
            0,
            {
                "data": {"name": "limit", "values": [{"line": "contract limit", "kl_nats": limit}]},
                "mark": {"type": "rule", "stroke": LIMIT.light, "strokeDash": [6, 4], "strokeWidth": 1.5},
                "encoding": {"x": {**x, "field": "kl_nats"}},
            },
        )
    for kind, dx, weight in (("arm", 0, "bold"), ("slice", 6, "normal")):
        written = {"x": left, "y": {**y, "field": "row"}, "text": {"field": "name"}}
        rows = {"data": {"name": f"{kind} names", "values": [name for name in names if name["kind"] == kind]}}
        layers += texts(rows, written, align="left", baseline="bottom", dx=dx, fontWeight=weight)
    return layers
