"""What commands print: JSON for programs, aligned tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN and infinity are refused, since JSON has none."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> None:
    """An aligned table on stdout; columns of `right` (numbers) are right-aligned."""
    for line in table_lines(header, rows, right):
        print(line)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = ()) -> Iterator[str]:
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for index, row in enumerate(cells):
        parts = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()
        if index == 0:
            yield "  ".join("-" * width for width in widths)


def say(text: str) -> None:
    """A line for people, on stderr, so that stdout holds the answer alone. A stderr that is gone ends no run."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def nbytes_text(nbytes: float) -> str:
    """Bytes with a binary unit, three significant digits."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"
