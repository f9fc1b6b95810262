"""Bytes a token as stacked bars: persistent bytes by owner, and the transient peak below them."""

from __future__ import annotations

from typing import Any

from kvassay.core.geometry import Owner
from kvassay.report.chart_frame import NARROW, Spec, bar_label, framed, texts
from kvassay.report.findings import Findings
from kvassay.report.ledger_figures import leading_ledger
from kvassay.report.ledger_tables import OWNER_WORDS, owners_of
from kvassay.report.palette import LIMIT, OWNERS
from kvassay.report.visible_text import visible

_ARM_ROWS = 3.2
"""Rows of one arm, in units of a bar: its name, two bars, and a gap."""
_ROW_PIXELS = 17
_HEAD_ROWS = 1
"""Room over the bars for the name of the dashed line."""
TRANSIENT = "transient peak (buffers of one call)"


def ledger_chart(findings: Findings, width: int) -> Spec | None:
    """None where the pack has no ledger."""
    ordered = sorted(
        ((name, pair, leading_ledger(pair)) for name, pair in findings.content.ledgers.items()),
        key=lambda entry: -entry[2].ratio_to_float16,
    )
    if not ordered:
        return None
    rows: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for index, (name, pair, ledger) in enumerate(ordered):
        top = index * _ARM_ROWS
        per_token = ledger.tokens * ledger.batch
        names.append({"name": bar_label(name, width), "top": top + 0.9})
        start = 0.0
        for owner in owners_of([ledger]):
            end = start + ledger.owner_nbytes(owner) / per_token
            rows.append(_bar(name, "persistent", OWNER_WORDS[owner], start, end, top + 1))
            start = end
        source = ledger if ledger.peak_transient_nbytes is not None else pair.computed
        if source.peak_transient_nbytes is not None:
            end = source.peak_transient_nbytes / (source.tokens * source.batch)
            rows.append(_bar(name, "transient", TRANSIENT, 0.0, end, top + 2))
    denominators = sorted({ledger.float16_nbytes / (ledger.tokens * ledger.batch) for _, _, ledger in ordered})
    height = _ARM_ROWS * len(ordered)
    return framed(
        width,
        round((height + _HEAD_ROWS) * _ROW_PIXELS),
        rows,
        layer=_layers(rows, names, denominators, height, width),
    )


def _bar(arm: str, part: str, owner: str, start: float, end: float, top: float) -> dict[str, Any]:
    return {
        "arm": visible(arm),
        "part": part,
        "owner": owner,
        "nbytes_per_token": end - start,
        "start": start,
        "end": end,
        "top": top,
        "bottom": top + 0.86,
    }


def _layers(
    rows: list[dict[str, Any]], names: list[dict[str, Any]], denominators: list[float], height: float, width: int
) -> list[Spec]:
    colours = {OWNER_WORDS[owner]: OWNERS[owner].light for owner in Owner if owner is not Owner.WORKSPACE}
    colours[TRANSIENT] = OWNERS[Owner.WORKSPACE].light
    present = [owner for owner in colours if any(row["owner"] == owner for row in rows)]
    y = {"type": "quantitative", "scale": {"domain": [height, -_HEAD_ROWS], "nice": False}, "axis": None}
    x = {
        "type": "quantitative",
        "title": "bytes per token of context, all layers",
        "scale": {"zero": True, "nice": True},
        "axis": {"tickCount": 6 if width > NARROW else 3, "format": ",~f"},
    }
    layers: list[Spec] = [
        {
            "mark": {"type": "rect"},
            "encoding": {
                "x": {**x, "field": "start"},
                "x2": {"field": "end"},
                "y": {**y, "field": "top"},
                "y2": {"field": "bottom"},
                "color": {
                    "field": "owner",
                    "type": "nominal",
                    "title": None,
                    "scale": {"domain": present, "range": [colours[owner] for owner in present]},
                    "legend": {"orient": "bottom", "columns": 1 if width == NARROW else 3, "symbolType": "square"},
                },
            },
        },
    ]
    # One line only: with several geometries in one pack there is no common denominator.
    if len(denominators) == 1:
        line = {"name": "denominator", "values": [{"line": "16 bit", "nbytes_per_token": denominators[0]}]}
        layers.append(
            {
                "data": line,
                "mark": {"type": "rule", "stroke": LIMIT.light, "strokeDash": [6, 4], "strokeWidth": 1.5},
                "encoding": {"x": {**x, "field": "nbytes_per_token"}},
            }
        )
        layers.append(
            {
                "data": line,
                "mark": {
                    "type": "text",
                    "align": "right",
                    "baseline": "bottom",
                    "dx": -3,
                    "y": 10,
                    "fill": LIMIT.light,
                },
                "encoding": {"x": {**x, "field": "nbytes_per_token"}, "text": {"field": "line"}},
            }
        )
    written = {"x": {**x, "datum": 0}, "y": {**y, "field": "top"}, "text": {"field": "name"}}
    return [*layers, *texts({"data": {"name": "names", "values": names}}, written, align="left", baseline="bottom")]
