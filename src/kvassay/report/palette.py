"""Colours of charts and page, one pair (light, dark) a name.

A chart's spec holds the light colours, so that any Vega-Lite renderer can draw it. In the page each of them is replaced
by the CSS variable of its name, so that the same drawing follows the reader's theme. Contrast against the background is
a test: 4.5 for text and verdict words, 3 for lines, points and areas.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.geometry import Owner


class Colour(NamedTuple):
    light: str
    dark: str


PAGE = Colour("#ffffff", "#14171a")
PANEL = Colour("#f4f6f7", "#1d2125")
INK = Colour("#1c2226", "#e4e8ea")
MUTED = Colour("#566069", "#9fabb4")
GRID = Colour("#dde2e6", "#343b41")
LINK = Colour("#0b5cad", "#6cb2f7")
LIMIT = Colour("#0b5cac", "#6cb2f6")

OUTCOMES: dict[str, Colour] = {
    "met": Colour("#176f3a", "#4cc37a"),
    "breached": Colour("#b3261e", "#ff7b72"),
    "inconclusive": Colour("#8a5a00", "#e0a83a"),
    "unmeasured": Colour("#5b6670", "#a0abb5"),
    "invalid": Colour("#7a3fb8", "#c49bf5"),
}

OWNERS: dict[Owner, Colour] = {
    Owner.CODES: Colour("#2b6cb0", "#63a4e8"),
    Owner.SCALES: Colour("#c2570c", "#f09a57"),
    Owner.ZERO_POINTS: Colour("#86339b", "#cf8fe0"),
    Owner.WINDOW: Colour("#0f766e", "#44bdb2"),
    Owner.SINKS: Colour("#7c5410", "#cfa55b"),
    Owner.SKIPPED_LAYERS: Colour("#a8205f", "#f07fae"),
    Owner.PADDING: Colour("#6b7680", "#98a3ac"),
    Owner.BLOCK_TABLE: Colour("#586a00", "#b0c24a"),
    Owner.WORKSPACE: Colour("#44484c", "#c9ced2"),
}

HEAT: tuple[Colour, ...] = (
    Colour("#dce9f5", "#1f3347"),
    Colour("#b3d0ea", "#28527a"),
    Colour("#7fb0db", "#3573ad"),
    Colour("#4a86c2", "#5a97d4"),
    Colour("#275a94", "#93bfea"),
    Colour("#123258", "#d8eafa"),
)
"""Small to large error; in the dark theme large is bright."""


def css_variables() -> dict[str, Colour]:
    """Every colour by its CSS variable."""
    return {
        "--page": PAGE,
        "--panel": PANEL,
        "--ink": INK,
        "--muted": MUTED,
        "--grid": GRID,
        "--link": LINK,
        "--limit": LIMIT,
        **{f"--{name}": colour for name, colour in OUTCOMES.items()},
        **{f"--owner-{owner.value.replace('_', '-')}": colour for owner, colour in OWNERS.items()},
        **{f"--heat-{level}": colour for level, colour in enumerate(HEAT)},
    }


def variable_of_light() -> dict[str, str]:
    """CSS variable by light colour."""
    return {colour.light: name for name, colour in css_variables().items()}
