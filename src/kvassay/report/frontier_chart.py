"""Bytes against loss: stored bits a value and mean KL with its interval, the contract's limit drawn as a line."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kvassay.core.records import Outcome, Role
from kvassay.report.chart_frame import MAX_LABEL_CHARACTERS, NARROW, Spec, decades, finite, framed, texts
from kvassay.report.figures import as_given, significant
from kvassay.report.findings import Findings, MeanKl
from kvassay.report.label_places import CHARACTER_WIDTH, LABEL_HEIGHT, Box, Point, place_labels
from kvassay.report.outcomes import MARKS
from kvassay.report.palette import LIMIT, MUTED, OUTCOMES
from kvassay.report.visible_text import visible

HEIGHT = 340
_SHAPES = {
    "MET": "circle",
    "BREACHED": "cross",
    "INCONCLUSIVE": "diamond",
    "NOT MEASURED": "square",
    "INVALID": "triangle-up",
}


class _Entry(NamedTuple):
    arm: str
    role: Role
    outcome: Outcome
    stored_bits: float
    kl: MeanKl


class _Axes(NamedTuple):
    """Plot area in pixels and in data; y is logarithmic."""

    width: float
    bits_max: float
    kl_min: float
    kl_max: float

    def x(self, bits: float) -> float:
        return bits / self.bits_max * self.width

    def y(self, kl_nats: float) -> float:
        share = math.log(kl_nats / self.kl_min) / math.log(self.kl_max / self.kl_min)
        return HEIGHT * (1 - share)

    def bits(self, x: float) -> float:
        return x / self.width * self.bits_max

    def kl_nats(self, y: float) -> float:
        return self.kl_min * (self.kl_max / self.kl_min) ** (1 - y / HEIGHT)

    def drawn(self, kl_nats: float | None, missing: float) -> float:
        """`kl_nats` moved onto the axis; a log axis has no zero, and a bound may be infinite."""
        return missing if kl_nats is None else min(max(kl_nats, self.kl_min), self.kl_max)


def frontier_chart(findings: Findings, width: int) -> Spec | None:
    """None where no arm has both a ledger and a positive mean KL."""
    entries = _entries(findings)
    positive = [entry.kl.estimate for entry in entries if entry.kl.estimate > 0]
    if not positive:
        return None
    limit = next((entry.kl.limit for entry in entries if entry.kl.limit is not None and entry.kl.limit > 0), None)
    axes = _axes(entries, positive, limit, width)
    noise = noise_floor(findings)
    lines = []
    if limit is not None:
        lines.append({"line": f"contract limit {as_given(limit)}", "kl_nats": limit})
    if noise is not None and noise > axes.kl_min:
        lines.append({"line": f"noise floor {significant(noise)}", "kl_nats": noise})
    labels = [_label(entry, width) for entry in entries]
    boxes = place_labels(
        [
            Point(
                axes.x(entry.stored_bits),
                axes.y(axes.drawn(entry.kl.estimate, axes.kl_min)),
                axes.y(axes.drawn(entry.kl.upper, axes.drawn(entry.kl.estimate, axes.kl_min))),
                axes.y(axes.drawn(entry.kl.lower, axes.drawn(entry.kl.estimate, axes.kl_min))),
                label,
            )
            for entry, label in zip(entries, labels, strict=True)
        ],
        width,
        HEIGHT,
        [box for line in lines for box in _line_boxes(line, axes)],
    )
    rows = [_row(entry, label, box, axes) for entry, label, box in zip(entries, labels, boxes, strict=True)]
    return framed(width, HEIGHT, rows, layer=_layers(rows, lines, axes), resolve={"scale": {"shape": "shared"}})


def noise_floor(findings: Findings) -> float | None:
    """Largest mean KL of the reference against itself; None where it was not run."""
    found = findings.mean_kl
    again = [arm.name for arm in findings.content.arms if arm.role is Role.REFERENCE_AGAIN]
    return max((found[name].estimate for name in again if name in found), default=None)


def _entries(findings: Findings) -> list[_Entry]:
    """Candidates and canary; the reference against itself is a line."""
    content, figures, kl = findings.content, findings.figures, findings.mean_kl
    entries = [
        _Entry(verdict.arm, verdict.role, verdict.outcome, figures[verdict.arm].stored_bits, kl[verdict.arm])
        for verdict in content.verdicts.formats
        if verdict.role is not Role.REFERENCE_AGAIN and verdict.arm in figures and verdict.arm in kl
    ]
    judged = {verdict.arm for verdict in content.verdicts.formats}
    unjudged = [
        _Entry(arm.name, arm.role, Outcome.NOT_MEASURED, figures[arm.name].stored_bits, kl[arm.name])
        for arm in content.arms
        if arm.name not in judged and arm.role is not Role.REFERENCE_AGAIN and arm.name in figures and arm.name in kl
    ]
    return [entry for entry in entries + unjudged if math.isfinite(entry.kl.estimate)]


def _axes(entries: list[_Entry], positive: list[float], limit: float | None, width: int) -> _Axes:
    ends = [bound for entry in entries for bound in (entry.kl.lower, entry.kl.upper) if bound is not None]
    points = [*positive, limit] if limit is not None else positive
    low, high = min(points), max(points)
    # An interval may reach a decade beyond the points; beyond that it is cut, or one wide bound flattens the chart.
    low = min([low, *(end for end in ends if low / 10 <= end)])
    high = max([high, *(end for end in ends if end <= high * 10)])
    ticks = decades(low * 0.999, high * 1.001)
    bits_max = max(entry.stored_bits for entry in entries)
    return _Axes(width, 2.0 * math.ceil((bits_max + 1) / 2), ticks[0], ticks[-1])


def _label(entry: _Entry, width: int) -> str:
    room = 20 if width == NARROW else MAX_LABEL_CHARACTERS
    name = visible(entry.arm)
    name = name if len(name) <= room else name[: room - 1] + "…"
    if entry.kl.estimate <= 0:
        name += " (0)"
    return f"{name} (canary)" if entry.role is Role.CANARY else name


def _row(entry: _Entry, label: str, box: Box, axes: _Axes) -> dict[str, Any]:
    drawn = axes.drawn(entry.kl.estimate, axes.kl_min)
    middle = (box.top + box.bottom) / 2
    x, y = axes.x(entry.stored_bits), axes.y(drawn)
    # The end towards the point is fixed, since the reader's font may be narrower than the one reckoned with.
    anchor = "right" if box.right < x else "left"
    # A leader ends at the label's nearest side; over or under a label that spans the point, at its edge.
    end_x = min(max(x, box.left - 2), box.right + 2)
    end_y = middle if end_x != x else (box.top if box.top > y else box.bottom)
    return {
        "arm": visible(entry.arm),
        "role": entry.role.value,
        "outcome": MARKS[entry.outcome].word,
        "stored_bits": entry.stored_bits,
        "kl_mean_nats": entry.kl.estimate,
        "lower_nats": finite(entry.kl.lower),
        "upper_nats": finite(entry.kl.upper),
        "drawn_nats": drawn,
        "drawn_lower_nats": axes.drawn(entry.kl.lower, drawn),
        "drawn_upper_nats": axes.drawn(entry.kl.upper, drawn),
        "label": label,
        "anchor": anchor,
        "label_bits": axes.bits(box.right if anchor == "right" else box.left),
        "label_nats": axes.kl_nats(middle),
        "leader_bits": axes.bits(end_x),
        "leader_nats": axes.kl_nats(end_y),
        "far": abs(middle - y) > 16,
    }


def _line_boxes(line: dict[str, Any], axes: _Axes) -> list[Box]:
    """What a horizontal line and the words over its right end cover."""
    y = axes.y(line["kl_nats"])
    words = Box(axes.width - CHARACTER_WIDTH * len(line["line"]), y - 4 - LABEL_HEIGHT, axes.width, y)
    return [Box(0, y - 4, axes.width, y + 4), words]


def _layers(rows: list[dict[str, Any]], lines: list[dict[str, Any]], axes: _Axes) -> list[Spec]:
    words = [mark.word for mark in MARKS.values() if any(row["outcome"] == mark.word for row in rows)]
    colours = {mark.word: OUTCOMES[mark.css_class].light for mark in MARKS.values()}
    colour = {
        "field": "outcome",
        "type": "nominal",
        "title": None,
        "scale": {"domain": words, "range": [colours[word] for word in words]},
        "legend": {"orient": "bottom", "columns": 2 if axes.width == NARROW else 5, "symbolSize": 90},
    }
    shape = {
        "field": "outcome",
        "type": "nominal",
        "title": None,
        "scale": {"domain": words, "range": [_SHAPES[word] for word in words]},
        "legend": {"orient": "bottom"},
    }
    x = {
        "field": "stored_bits",
        "type": "quantitative",
        "title": "stored bits per value, every byte counted",
        "scale": {"domain": [0, axes.bits_max], "nice": False},
        "axis": {"tickCount": 8 if axes.width > NARROW else 4},
    }
    ticks = decades(axes.kl_min, axes.kl_max)
    y = {
        "type": "quantitative",
        "title": "mean KL, nats per token (log scale)",
        "scale": {"type": "log", "domain": [axes.kl_min, axes.kl_max], "nice": False},
        "axis": {
            "values": ticks,
            "format": "~g",
            "titleAngle": 0,
            "titleAlign": "left",
            "titleX": -34,
            "titleY": -14,
            "minExtent": 40,
        },
    }
    line_data = {"name": "lines", "values": lines}
    layers: list[Spec] = [
        {
            "data": line_data,
            "mark": {"type": "rule", "stroke": LIMIT.light, "strokeWidth": 1.5, "strokeDash": [6, 4]},
            "encoding": {"y": {**y, "field": "kl_nats"}},
        },
        {
            "data": line_data,
            "mark": {"type": "text", "align": "right", "baseline": "bottom", "dy": -3, "fill": LIMIT.light},
            "encoding": {
                "x": {**x, "field": None, "datum": axes.bits_max},
                "y": {**y, "field": "kl_nats"},
                "text": {"field": "line"},
            },
        },
        {
            "transform": [{"filter": {"field": "far", "equal": True}}],
            "mark": {"type": "rule", "stroke": MUTED.light, "strokeWidth": 1},
            "encoding": {
                "x": x,
                "y": {**y, "field": "drawn_nats"},
                "x2": {"field": "leader_bits"},
                "y2": {"field": "leader_nats"},
            },
        },
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "x": x,
                "y": {**y, "field": "drawn_lower_nats"},
                "y2": {"field": "drawn_upper_nats"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
            "encoding": {"x": x, "y": {**y, "field": "drawn_nats"}, "color": colour, "shape": shape},
        },
    ]
    label = {
        "x": {**x, "field": "label_bits"},
        "y": {**y, "field": "label_nats"},
        "text": {"field": "label"},
    }
    for anchor in ("left", "right"):
        of_anchor = {"transform": [{"filter": {"field": "anchor", "equal": anchor}}]}
        layers += texts(of_anchor, label, align=anchor, baseline="middle")
    for layer in layers:
        for channel in layer["encoding"].values():
            if channel.get("field", "") is None:
                del channel["field"]
    return layers if lines else layers[2:]
