"""Results by slice: clauses of each slice, and the KL of each slice for the chart."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.pack.reader import PackContent
from kvassay.report.arrow_rows import distinct
from kvassay.report.clause_tables import ClauseRow, format_clauses
from kvassay.report.token_summary import ALL


class SliceClause(NamedTuple):
    arm: str
    row: ClauseRow


class Slices(NamedTuple):
    clauses: tuple[SliceClause, ...]
    left_out: int
    token_slices: tuple[str, ...]
    item_slices: tuple[str, ...]

    @property
    def several(self) -> bool:
        return bool(self.clauses) or len(self.token_slices) > 1 or len(self.item_slices) > 1


def slices(content: PackContent, max_clauses: int) -> Slices:
    """Clauses of single slices, worst first: those that decide, then by outcome."""
    judged = [
        SliceClause(found.arm, row) for found in format_clauses(content) for row in found.clauses if row.slice != ALL
    ]
    judged.sort(key=lambda found: (not found.row.decides, found.row.mark.severity))
    return Slices(
        clauses=tuple(judged[:max_clauses]),
        left_out=max(0, len(judged) - max_clauses),
        token_slices=tuple(distinct(content.tables.tokens, "slice")),
        item_slices=tuple(
            dict.fromkeys((*distinct(content.tables.items, "slice"), *distinct(content.tables.answers, "slice")))
        ),
    )
