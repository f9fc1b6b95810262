"""Rows as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A line an arm, also for those that did not run; below it who computed."""
    lines = [
        "| heads, context, threads | arm | µs (range; n) | wall µs | times the first | GB/s | of the roof | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        place = f"| {row['shape']}, {row['context']:,}, {row['threads']} | {row['arm']} |"
        if "did_not_run" in row:
            lines.append(f"{place} did not run: {row['did_not_run'].replace('|', '/')} | | | | | |")
            continue
        lines.append(
            f"{place} {row['median_us']:,.0f} ({row['low_us']:,.0f} to {row['high_us']:,.0f}; {row['n']}) "
            f"| {row['wall_us']:,.0f} | {row['times_first']:.2f} | {row['gb_per_s']:.1f} "
            f"| {100 * row['of_roof']:.0f}% of {row['roof_gb_per_s']:.1f} | {row['error']:.1e} |"
        )
    libraries = sorted({row["library"] for row in rows if "library" in row})
    return "\n".join([*lines, "", f"Computed by {'; '.join(libraries) or 'nobody'}."])
