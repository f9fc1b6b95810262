"""What commands print: JSON for programs, aligned tables for people."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TextIO


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN and infinity are refused, since JSON has none."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = (), lead: int = 0
) -> None:
    """An aligned table on stdout; columns of `right` (numbers) are right-aligned.

    On a terminal that is too narrow for it the first `lead` columns stand on a line of their own, above the others.
    """
    for line in table_lines(header, rows, right, lead, terminal_width(sys.stdout)):
        print(line)


def table_lines(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[int] = (),
    lead: int = 0,
    width: int | None = None,
) -> Iterator[str]:
    """The lines of a table. Where they are longer than `width`, columns that do not fit follow each row as text."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    if not lead or width is None or _fitting(cells, width) == len(header):
        for lines in _lines_of_rows(cells, right, width):
            yield from lines
        return
    beneath = [row[lead:] for row in cells]
    for row, lines in zip(cells, _lines_of_rows(beneath, [each - lead for each in right], width - 2), strict=True):
        if any(row[:lead]):
            yield "  ".join(row[:lead])
        yield from (f"  {line}" for line in lines)


def _lines_of_rows(cells: Sequence[Sequence[str]], right: Sequence[int], width: int | None) -> Iterator[list[str]]:
    """Each row's lines, those of the header first."""
    widths = _widths(cells)
    fitting = _fitting(cells, width)
    for index, row in enumerate(cells):
        parts = [
            cell.rjust(size) if column in right else cell.ljust(size)
            for column, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        lines = ["  ".join(parts[:fitting]).rstrip()]
        if index == 0:
            lines.append("  ".join("-" * size for size in widths[:fitting]).rstrip())
        elif width is not None:
            rest = zip(cells[0][fitting:], row[fitting:], strict=True)
            text = "; ".join(f"{name}: {cell}" for name, cell in rest if cell)
            indent = "    "
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        yield lines


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]


def _fitting(cells: Sequence[Sequence[str]], width: int | None) -> int:
    """How many columns, two blanks apart, fit; at least one."""
    widths = _widths(cells)
    if width is None:
        return len(widths)
    return max(1, sum(end - 2 <= width for end in itertools.accumulate(each + 2 for each in widths)))


def terminal_width(stream: TextIO | None) -> int | None:
    """Columns of the terminal behind a stream; None where it is a file or a pipe, whose lines stay whole."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream is not None else None
    except (OSError, ValueError):
        return None


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
