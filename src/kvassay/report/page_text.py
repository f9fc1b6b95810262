"""What a template may print: every value is escaped and made visible here, none in the templates.

This is the only door from a pack to the page. Text has its hidden characters shown and its length bounded; a figure
carries its exact value; None reads "not recorded"; a bare float is our own mistake, since it has no unit or rounding.
"""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kvassay.report.figures import NOT_RECORDED, Figure
from kvassay.report.visible_text import clipped, visible

MAX_TEXT_CHARACTERS = 1500


class ShownText(str):
    """Text that is already visible and bounded; it is still escaped."""


def page_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kvassay.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_block"] = data_block
    return environment


def printed(value: Any) -> Any:
    """The `finalize` of the page: called for every `{{ ... }}`."""
    if isinstance(value, Markup | ShownText):
        return value
    if isinstance(value, Figure):
        return Markup('<data value="{}">{}</data>').format(value.exact, value.text)
    if value is None:
        return NOT_RECORDED
    if isinstance(value, str):
        return visible(clipped(value, MAX_TEXT_CHARACTERS))
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"{value!r} has no text form; make it a Figure")


def data_block(value: Any) -> Markup:
    """JSON for a `<script type="application/json">`: no character in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
