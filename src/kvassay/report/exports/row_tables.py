"""Rows of a pack as CSV or Parquet: its row tables, and one of its clauses.

A spreadsheet takes a cell that begins with = + - or @ for a formula and runs it (OWASP, "CSV Injection"). Texts come
from models and strangers, so in CSV a text that begins so, after blanks or not, gets an apostrophe before it, and so
does one that begins with an apostrophe; taking one leading apostrophe from every text that has one gives the texts
back. Parquet holds them as they are.
"""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from kvassay.pack.reader import PackContent
from kvassay.pack.tables import TABLE_COLUMNS, ArrowTable

CLAUSES = "clauses"
EXPORTED_TABLES = (CLAUSES, *TABLE_COLUMNS)

_FORMULA = r"^[\s\x00]*[=+\-@|%'\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]|^[\t\r\n]"

_CLAUSE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("arm", "role", "clause", "slice", "outcome", "unit")),
        *((name, pa.float64()) for name in ("estimate", "lower", "upper", "limit")),
        ("n", pa.int64()),
        *((name, pa.string()) for name in ("n_unit", "method", "reason")),
        ("decides", pa.bool_()),
    ]
)


def exported_table(content: PackContent, table: str) -> ArrowTable:
    """One of `EXPORTED_TABLES`."""
    return _clauses(content) if table == CLAUSES else getattr(content.tables, table)


def to_csv(table: ArrowTable) -> bytes:
    """UTF-8, a header, every text in quotes, and nothing at all for what was not measured."""
    sink = io.BytesIO()
    columns = [_neutral(column) if column.type == pa.string() else column for column in table.columns]
    pyarrow.csv.write_csv(pa.Table.from_arrays(columns, names=table.column_names), sink)
    return sink.getvalue()


def to_parquet(table: ArrowTable) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _neutral(column: Any) -> Any:
    formula = pc.match_substring_regex(column, _FORMULA)
    return pc.if_else(formula, pc.binary_join_element_wise("'", column, ""), column)


def _clauses(content: PackContent) -> ArrowTable:
    rows: list[dict[str, Any]] = []
    for verdict in content.verdicts.formats:
        for clause in verdict.clauses:
            fields = clause.model_dump(mode="json", exclude={"details"})
            decides = clause.details.get("descriptive") is not True and clause.details.get("waived") is not True
            rows.append({"arm": verdict.arm, "role": verdict.role.value, **fields, "decides": decides})
    return pa.Table.from_pylist(rows, schema=_CLAUSE_SCHEMA)
