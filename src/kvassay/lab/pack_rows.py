"""Rows of a pack, filtered and sorted, a page at a time."""

# pyarrow ships no types; what it returns is made plain here.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvassay.errors import UsageError
from kvassay.pack.tables import TABLE_COLUMNS, Tables
from kvassay.report.visible_text import clipped, visible

PAGE_ROWS = 25
MAX_CELL_CHARACTERS = 240

WORST_FIRST: dict[str, tuple[str, bool]] = {
    "tokens": ("kl_nats", True),
    "items": ("candidate_correct", False),
    "tensors": ("output_relative", True),
    "generations": ("logit_drift", True),
    "answers": ("logit_drift", True),
}
"""By which column a table is sorted where nothing else is asked, and whether the largest leads."""


class RowQuery(BaseModel):
    """Which rows of one table; empty text filters nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    arm: str = Field(default="", max_length=500)
    text: str = Field(default="", max_length=200)
    """Part of any text of the row: document, slice, question, answer."""
    sort: str = Field(default="", max_length=60)
    falling: bool = True
    offset: int = Field(default=0, ge=0, le=20_000_000)

    @field_validator("table")
    @classmethod
    def _of_a_pack(cls, table: str) -> str:
        if table not in TABLE_COLUMNS:
            raise ValueError(f"expected one of {', '.join(TABLE_COLUMNS)}")
        return table


def tables_of(tables: Tables) -> list[dict[str, Any]]:
    """The tables that have rows, with what each can be filtered by."""
    return [
        {
            "table": name,
            "rows": getattr(tables, name).num_rows,
            "columns": list(TABLE_COLUMNS[name]),
            "arms": sorted(pc.unique(getattr(tables, name)["arm"]).to_pylist()),
            "sort": WORST_FIRST[name][0],
        }
        for name in TABLE_COLUMNS
        if getattr(tables, name).num_rows
    ]


def rows_page(tables: Tables, query: RowQuery) -> dict[str, Any]:
    """Raises UsageError for a column that the table does not have."""
    table = getattr(tables, query.table)
    columns = TABLE_COLUMNS[query.table]
    sort, falling = (query.sort, query.falling) if query.sort else WORST_FIRST[query.table]
    if sort not in columns:
        raise UsageError(f"table {query.table} has no column {sort!r}; it has {', '.join(columns)}")
    if query.arm:
        table = table.filter(pc.equal(table["arm"], query.arm))
    if query.text:
        table = table.filter(_holds(table, query.text, columns))
    total = table.num_rows
    keys = table[sort].cast(pa.int8()) if columns[sort] == "bool" else table[sort]
    # What was not measured stands at the end, which is the default.
    order = pc.sort_indices(pa.table({"key": keys}), sort_keys=[("key", "descending" if falling else "ascending")])
    page = table.take(order.slice(query.offset, PAGE_ROWS))
    return {
        "table": query.table,
        "total": total,
        "of": getattr(tables, query.table).num_rows,
        "offset": query.offset,
        "page_rows": PAGE_ROWS,
        "sort": sort,
        "falling": falling,
        "columns": list(columns),
        "rows": [[_cell(row[name]) for name in columns] for row in page.to_pylist()],
    }


def _holds(table: Any, text: str, columns: dict[str, str]) -> Any:
    found = None
    for name, kind in columns.items():
        if kind != "string" or name == "arm":
            continue
        here = pc.fill_null(pc.match_substring(table[name], text, ignore_case=True), False)
        found = here if found is None else pc.or_(found, here)
    return found


def _cell(value: Any) -> Any:
    return visible(clipped(value, MAX_CELL_CHARACTERS)) if isinstance(value, str) else value
