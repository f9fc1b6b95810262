"""What every chart shares: sizes, axis style, and numbers that any JSON reader accepts."""

from __future__ import annotations

import math
from typing import Any

from kvassay.report.palette import GRID, INK, MUTED, PAGE
from kvassay.report.visible_text import visible

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""The spec's name for its own language; no renderer has to fetch it."""

WIDE, NARROW = 620, 218
"""Width in pixels of the plot itself, for a desktop and for a phone of 360 px."""

MAX_LABEL_CHARACTERS = 40

Spec = dict[str, Any]


def framed(width: int, height: int | None, rows: list[dict[str, Any]], **parts: Any) -> Spec:
    """A whole spec: `rows` are its data, `parts` its marks and encodings."""
    spec: Spec = {
        "$schema": SCHEMA,
        "width": width,
        "data": {"name": "rows", "values": rows},
        **parts,
        "config": {
            "aria": False,
            "background": None,
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "labelColor": INK.light,
                "titleColor": INK.light,
                "gridColor": GRID.light,
                "domainColor": MUTED.light,
                "tickColor": MUTED.light,
                "labelLimit": 260,
            },
            "legend": {
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "labelColor": INK.light,
                "titleColor": INK.light,
                "labelLimit": 260,
                # The reader's font may be wider than the one the legend was measured with.
                "columnPadding": 44,
            },
            "header": {"labelFontSize": 12, "labelColor": INK.light, "titleColor": INK.light},
            "text": {"fontSize": 12},
            "rect": {"stroke": PAGE.light},
        },
    }
    if height is not None:
        spec["height"] = height
    return spec


def texts(source: Spec, encoding: dict[str, Any], **mark: Any) -> list[Spec]:
    """Two layers of one text: a halo in the colour of the page, so that lines do not run through it, and the text.

    `source` is the layers' `data` or `transform`.
    """
    halo = {"stroke": PAGE.light, "strokeWidth": 4, "strokeJoin": "round"}
    styles = (halo, {"fill": INK.light})
    return [{**source, "mark": {"type": "text", **mark, **style}, "encoding": encoding} for style in styles]


def bar_label(name: str, width: int) -> str:
    """A name over its bar, cut to the plot's width; the table beside the chart has it whole."""
    room = 30 if width == NARROW else 2 * MAX_LABEL_CHARACTERS
    shown = visible(name)
    return shown if len(shown) <= room else shown[: room - 1] + "…"


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; a figure that is none stands as null."""
    return value if value is not None and math.isfinite(value) else None


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from the one at or below `low` to the one at or above `high`."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
