"""How much a cache holds."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    batch: int
    context: int
    """Tokens a row before the first step."""
