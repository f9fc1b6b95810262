"""The page's one style sheet: the palette as CSS variables, then `templates/report.css`."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from kvassay.report.palette import css_variables


@cache
def style_sheet() -> str:
    light = "".join(f"{name}:{colour.light};" for name, colour in css_variables().items())
    dark = "".join(f"{name}:{colour.dark};" for name, colour in css_variables().items())
    variables = (
        f":root{{color-scheme:light dark;{light}}}\n"
        # Printed pages are light, whatever the screen shows.
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
    return variables + (files("kvassay.report") / "templates" / "report.css").read_text(encoding="utf-8")


@cache
def content_security_policy() -> str:
    """Nothing may be loaded, run, framed or sent; the one style sheet is allowed by its hash."""
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
