"""Drawing a chart's spec as inline SVG, offline and at build time: the page needs no JavaScript.

Drawing needs vl-convert (extra `report`, 80 MB). Whoever only verifies a report compares everything but the drawings,
so without it a drawing is an element with title and description and nothing in it; `kvassay report` refuses then.
"""

from __future__ import annotations

import re
from html import escape
from importlib.util import find_spec
from typing import Any

from markupsafe import Markup

from kvassay.report.palette import variable_of_light

VEGA_LITE = "6.4"

_TAG = re.compile(r"<[^>]*>")
_PAINT = re.compile(r'\b(fill|stroke)="([^"]*)"')
_OPENING = re.compile(r'<svg [^>]*?width="([0-9.]+)" height="([0-9.]+)" viewBox="([^"]*)"[^>]*>')
_INNER_ROLE = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"')
"""Roles of marks inside: the whole drawing is one image with a name, and its parts have none."""
_UNPAINTED = frozenset({"none", "transparent"})
_INERT = re.compile(r"""<(?:script|style|image|foreignObject|use|a)\b|\b(?:href|style|on[a-z]+)=|url\(""")


def draw(spec: dict[str, Any], element_id: str, title: str, description: str, css_class: str) -> Markup:
    """The SVG element of a Vega-Lite spec, labelled for screen readers and painted with the page's CSS variables.

    A pack's names are in it as text only; vl-convert escapes them.
    """
    if not can_draw():
        return _element("0 0 1 1", "1", "1", element_id, title, description, css_class, "</svg>")
    import vl_convert

    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    opening = _OPENING.match(svg)
    assert opening is not None, f"vl-convert wrote another root element: {svg[:200]}"
    width, height, view_box = opening.groups()
    # Only inside tags: a label may hold any text, `fill="red"` included.
    body = _TAG.sub(lambda tag: _PAINT.sub(_variable, _INNER_ROLE.sub("", tag.group())), svg[opening.end() :])
    faults = moving_parts(body)
    assert not faults, f"a chart must be inert, found {faults}"
    return _element(view_box, width, height, element_id, title, description, css_class, body)


def can_draw() -> bool:
    return find_spec("vl_convert") is not None


def moving_parts(svg: str) -> list[str]:
    """What in a drawing could run, load or lead elsewhere; ours has nothing of it."""
    return [fault.group() for tag in _TAG.findall(svg) if (fault := _INERT.search(tag))]


def _element(
    view_box: str, width: str, height: str, element_id: str, title: str, description: str, css_class: str, body: str
) -> Markup:
    return Markup(
        f'<svg class="chart {css_class}" width="{width}" height="{height}" viewBox="{view_box}" role="img" '
        f'aria-labelledby="{element_id}-title {element_id}-desc">'
        f'<title id="{element_id}-title">{escape(title)}</title>'
        f'<desc id="{element_id}-desc">{escape(description)}</desc>{body}'
    )


def _variable(match: re.Match[str]) -> str:
    """A colour of the palette as its CSS variable."""
    attribute, colour = match.groups()
    if colour in _UNPAINTED:
        return match.group()
    return f'{attribute}="var({_VARIABLES[colour.lower()]})"'


_VARIABLES = {**variable_of_light(), "black": "--ink", "#000": "--ink"}
