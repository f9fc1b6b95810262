"""How much memory a JSON text may ask for.

A parsed value takes up to thirty times the bytes of its text: 64 MiB of `[[],[],…` become 2 GB of Python lists. So the
separators of a text are counted, which takes a fraction of the time that parsing does, before it is parsed.
"""

from __future__ import annotations

import re

MAX_JSON_VALUES = 2_000_000
"""Values of one text; the largest real file, a chart of a long run, has under a hundred thousand."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
"""A string, or the unclosed rest of a text: either way it is passed once, whatever stands in it."""


def json_size_fault(data: bytes, limit: int = MAX_JSON_VALUES) -> str | None:
    """A sentence where the text holds more values and names than `limit`, else None."""
    if _separators(data) < limit:  # those within strings included, which is quick and mostly enough
        return None
    found = _separators(_STRING.sub(b"", data)) + 1
    return f"more than {limit:,} JSON values ({found:,})" if found > limit else None


def _separators(data: bytes) -> int:
    return sum(data.count(each) for each in (b",", b"[", b"{", b":"))
