"""Streaming rows into a Parquet file whose bytes depend on the rows alone."""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvassay.errors import PackError
from kvassay.pack.tables import (
    CONTRACT_KEY,
    ROW_GROUP_ROWS,
    TABLE_KEY,
    ArrowTable,
    arrow_schema,
    rows_per_arm,
)

Rows: TypeAlias = ArrowTable | Mapping[str, Any]
"""Rows of one table: an Arrow table, or one entry a column. An entry is a sequence or numpy array of equal
lengths, or a single value (text, number, bool, None) that holds for all rows."""


_SINGLE = (str, int, float, np.generic)
_TAKEN: dict[Any, tuple[Any, ...]] = {
    pa.string(): (pa.types.is_string, pa.types.is_large_string),
    pa.int32(): (pa.types.is_integer,),
    pa.float64(): (pa.types.is_floating, pa.types.is_integer),
    pa.bool_(): (pa.types.is_boolean,),
}
"""Which types of given rows may become a column's type."""


class RowWriter:
    """Appends rows to one table's file. Rows are held back until a row group is full."""

    def __init__(self, path: Path, table: str, contract_sha256: str) -> None:
        self.table = table
        self.counts: dict[str, int] = {}
        """Rows of each arm so far."""
        self._schema: Any = arrow_schema(table)
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        texts = [field.name for field in self._schema if field.type == pa.string()]
        self._parquet = pq.ParquetWriter(
            str(path),
            self._schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=texts,  # pyright: ignore[reportArgumentType]
            write_statistics=False,
            store_schema=False,
        )
        self._parquet.add_key_value_metadata({CONTRACT_KEY.decode(): contract_sha256, TABLE_KEY.decode(): table})

    def append(self, rows: Rows) -> None:
        """Append rows; raises PackError naming the column for a missing, unknown, mistyped or null one."""
        batch = rows if isinstance(rows, pa.Table) else self._from_columns(rows)
        batch = self._typed(batch)
        for arm, count in rows_per_arm(batch).items():
            self.counts[arm] = self.counts.get(arm, 0) + count
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._write_groups(whole_only=True)

    def close(self) -> None:
        """Write what waits and the footer."""
        self._write_groups(whole_only=False)
        self._parquet.close()

    def _write_groups(self, whole_only: bool) -> None:
        waiting = pa.concat_tables([self._schema.empty_table(), *self._waiting])
        end = waiting.num_rows - (waiting.num_rows % ROW_GROUP_ROWS if whole_only else 0)
        for start in range(0, end, ROW_GROUP_ROWS):
            # One chunk a column: where pages are cut must not depend on how the rows came.
            group = waiting.slice(start, min(ROW_GROUP_ROWS, end - start)).combine_chunks()
            self._parquet.write_table(group, row_group_size=ROW_GROUP_ROWS)
        rest = waiting.slice(end).combine_chunks()
        self._waiting = [rest] if rest.num_rows else []
        self._waiting_rows = rest.num_rows

    def _from_columns(self, columns: Mapping[str, Any]) -> pa.Table:
        self._check_names(list(columns))
        single = [name for name, value in columns.items() if value is None or isinstance(value, _SINGLE)]
        lengths = {name: len(value) for name, value in columns.items() if name not in single}
        if len(set(lengths.values())) > 1:
            raise PackError(f"{self.table}: columns of unequal length: {lengths}")
        num_rows = next(iter(lengths.values()), 1)
        arrays: dict[str, pa.Array] = {}
        for name, value in columns.items():
            try:
                arrays[name] = pa.array([value] * num_rows if name in single else value)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise PackError(f"{self.table}.{name}: {error}") from error
        return pa.table(arrays)

    def _typed(self, batch: pa.Table) -> pa.Table:
        self._check_names(batch.column_names)
        columns: list[pa.ChunkedArray] = []
        for field in self._schema:
            column = batch.column(field.name)
            where = f"{self.table}.{field.name}"
            if not field.nullable and column.null_count:
                raise PackError(f"{where}: holds nulls; it identifies the row and cannot")
            # A cast would also read numbers out of text and truth out of numbers.
            taken = _TAKEN[field.type]
            if not pa.types.is_null(column.type) and not any(kind(column.type) for kind in taken):
                raise PackError(f"{where}: expected {field.type}, found {column.type}")
            try:
                columns.append(column.cast(field.type))
            except (pa.ArrowException, ValueError) as error:
                raise PackError(f"{where}: expected {field.type}: {error}") from error
        return pa.Table.from_arrays(columns, schema=self._schema)

    def _check_names(self, names: list[str]) -> None:
        missing = [name for name in self._schema.names if name not in names]
        unknown = [name for name in names if name not in self._schema.names]
        if missing or unknown or len(names) != len(self._schema):
            raise PackError(f"{self.table}: missing columns {missing}, unknown or doubled columns {unknown}")
