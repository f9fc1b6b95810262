"""Places for the labels of points in a chart, so that no label covers another label, point or interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CHARACTER_WIDTH = 6.7
"""Pixels of an average character at the label size; generous, since the reader's font is not known."""
LABEL_HEIGHT = 14.0
POINT_RADIUS = 7.0

_DISTANCES = (0.0, 12.0, 24.0, 38.0, 54.0, 72.0, 92.0)


class Point(NamedTuple):
    """A point and its vertical interval, in pixels; y grows downwards."""

    x: float
    y: float
    top: float
    bottom: float
    label: str


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0


def place_labels(points: Sequence[Point], width: float, height: float, taken: Sequence[Box] = ()) -> list[Box]:
    """A box for each label inside a plot of `width` x `height` pixels; greedy, in the order of the points.

    `taken` are boxes of other things, such as lines.

    Where no free place exists the one that covers least is taken.
    """
    marks = [mark for point in points for mark in _mark_boxes(point)]
    placed: list[Box] = []
    for point in points:
        candidates = [_inside(box, width, height) for box in _candidates(point)]
        obstacles = [*taken, *marks, *placed]
        # min() keeps the first of equals: the nearest free place.
        placed.append(min(candidates, key=lambda box: round(sum(box.overlap(other) for other in obstacles), 3)))
    return placed


def _mark_boxes(point: Point) -> list[Box]:
    return [
        Box(point.x - POINT_RADIUS, point.y - POINT_RADIUS, point.x + POINT_RADIUS, point.y + POINT_RADIUS),
        Box(point.x - 2, point.top, point.x + 2, point.bottom),
    ]


def _candidates(point: Point) -> list[Box]:
    """Right of the point, left of it, over and under it, at growing vertical distance."""
    width = CHARACTER_WIDTH * len(point.label)
    boxes: list[Box] = []
    for distance in _DISTANCES:
        for dy in dict.fromkeys((-distance, distance)):
            middle = point.y + dy
            beside = (point.x + POINT_RADIUS + 3, point.x - POINT_RADIUS - 3 - width)
            for left in (*beside, point.x - width / 2):
                boxes.append(Box(left, middle - LABEL_HEIGHT / 2, left + width, middle + LABEL_HEIGHT / 2))
    return boxes


def _inside(box: Box, width: float, height: float) -> Box:
    """The box shifted into the plot."""
    dx = max(0.0, -box.left) - max(0.0, box.right - width)
    dy = max(0.0, -box.top) - max(0.0, box.bottom - height)
    return Box(box.left + dx, box.top + dy, box.right + dx, box.bottom + dy)
