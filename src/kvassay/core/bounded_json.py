"""How much memory a JSON text may ask for.

A parsed value takes up to thirty times the bytes of its text: 64 MiB of `[[],[],…` become 2 GB of Python lists. So the
separators of a text are counted, which takes a thousandth of the time that parsing does, before it is parsed.
"""

from __future__ import annotations

MAX_JSON_VALUES = 2_000_000
"""Values of one text; the largest real file, a chart of a long run, has under a hundred thousand."""


def json_values_at_most(data: bytes) -> int:
    """An upper bound of the number of values and keys of a JSON text; separators within strings count as well."""
    return 1 + data.count(b",") + data.count(b"[") + data.count(b"{") + data.count(b":")


def json_size_fault(data: bytes, limit: int = MAX_JSON_VALUES) -> str | None:
    """A sentence where the text may hold more values than `limit`, else None."""
    found = json_values_at_most(data)
    return f"up to {found:,} JSON values; at most {limit:,} are read" if found > limit else None
