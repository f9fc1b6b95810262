"""What every chart shares: sizes, axis style, and numbers that any JSON reader accepts."""

from __future__ import annotations

import math
from typing import Any

from kvassay.report.palette import GRID, INK, MUTED, PAGE

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
            },
            "header": {"labelFontSize": 12, "labelColor": INK.light, "titleColor": INK.light},
            "text": {"fontSize": 12, "fill": INK.light},
            "rect": {"stroke": PAGE.light},
        },
    }
    if height is not None:
        spec["height"] = height
    return spec


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity; a figure that is none stands as null."""
    return value if value is not None and math.isfinite(value) else None


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from the one at or below `low` to the one at or above `high`."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
