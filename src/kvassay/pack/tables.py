"""Row tables: their Arrow schemas, and a reader that trusts no file.

Columns and their types are those of `kvassay.core.records`. Identifying columns are never null; a figure may
be null, which means that it was not measured.
"""

# pyarrow ships no types, so what it returns is unknown to the checker in this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvassay.core.contract import Contract
from kvassay.core.records import (
    ANSWER_COLUMNS,
    GENERATION_COLUMNS,
    ITEM_COLUMNS,
    TENSOR_COLUMNS,
    TOKEN_COLUMNS,
)
from kvassay.errors import PackError
from kvassay.pack.parquet_pages import check_footer_size, check_pages
from kvassay.pack.plain_files import open_plain

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`."""

TABLE_COLUMNS: dict[str, dict[str, str]] = {
    "tokens": TOKEN_COLUMNS,
    "items": ITEM_COLUMNS,
    "tensors": TENSOR_COLUMNS,
    "generations": GENERATION_COLUMNS,
    "answers": ANSWER_COLUMNS,
}
CONTRACT_KEY = b"kvassay.contract_sha256"
TABLE_KEY = b"kvassay.table"

ROW_GROUP_ROWS = 1 << 16
"""Rows of every row group but the last: a file's bytes must not depend on how its rows were streamed."""
MAX_ROWS = 20_000_000
MAX_TABLE_NBYTES = 2 << 30
"""Decoded size beyond which a table is refused: a few kilobytes of Parquet can claim to hold terabytes."""

_MAX_FOOTER_TEXT_NBYTES = 1 << 20
_MAX_FOOTER_LIST = 10_000

_ARROW_TYPES = {"string": pa.string(), "int32": pa.int32(), "float64": pa.float64(), "bool": pa.bool_()}
_IDENTIFYING = frozenset(
    {
        "arm",
        "task",
        "slice",
        "document",
        "context",
        "question",
        "position",
        "token_id",
        "layer",
        "head",
        "substituted",
        "prompt",
        "prompt_ids",
        "end_ids",
        "reference_ids",
        "candidate_ids",
        "reference_text",
        "candidate_text",
    }
)


class Tables(NamedTuple):
    """Rows as Arrow tables with the columns of `kvassay.core.records`."""

    tokens: ArrowTable
    items: ArrowTable
    tensors: ArrowTable
    generations: ArrowTable
    answers: ArrowTable


_LEVEL_TABLES = {"fidelity": "tokens", "free_running": "generations", "numeric": "tensors", "task": "items"}


def clause_table(contract: Contract, clause: str) -> str | None:
    """The table whose rows a clause rests on; None for bytes, which have none."""
    level, _, name = clause.partition(".")
    if level == "task" and name.partition(".")[0] in contract.written_tasks:
        return "answers"
    return _LEVEL_TABLES.get(level)


def table_file(table: str) -> str:
    return f"rows/{table}.parquet"


def arrow_schema(table: str) -> pa.Schema:
    columns = TABLE_COLUMNS[table]
    return pa.schema([pa.field(name, _ARROW_TYPES[kind], name not in _IDENTIFYING) for name, kind in columns.items()])


def is_identifying(column: str) -> bool:
    """True for a column that says which row it is, and so is never null."""
    return column in _IDENTIFYING


def rows_per_arm(table: ArrowTable) -> dict[str, int]:
    """Number of rows of each arm, arms in the order of their first row."""
    counts = pc.value_counts(table.column("arm")).to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def rows_of_arms(table: ArrowTable, arms: Sequence[str]) -> ArrowTable:
    """The rows of these arms alone, in their order."""
    return table.filter(pc.is_in(table.column("arm"), value_set=pa.array(list(arms), pa.string())))


class ReadTable(NamedTuple):
    rows: ArrowTable
    contract_sha256: str
    """What the file's own metadata says; empty where it says nothing."""


def read_table(folder: Path, table: str) -> ReadTable:
    """Read one row table below `folder`, a row group at a time.

    Raises PackError for a file that is no Parquet, has other columns or types, nulls in an identifying
    column, or claims more rows or bytes than the caps.
    """
    name = table_file(table)
    schema = arrow_schema(table)
    texts = [field.name for field in schema if field.type == pa.string()]
    with open_plain(folder, name) as file:
        check_footer_size(file, name)
        try:
            footer = _opened(file)
            _check_footer(name, schema, footer)
            check_pages(file, footer.metadata, name)
            # Texts stay dictionaries while they are read: expanded, one long text in every row would fill
            # memory.
            parquet = _opened(file, texts)
            groups = [schema.empty_table()]
            nbytes = 0
            for index in range(parquet.num_row_groups):
                group = parquet.read_row_group(index, use_threads=False)
                nbytes += sum(_decoded_nbytes(column) for column in group.columns)
                if nbytes > MAX_TABLE_NBYTES:
                    raise PackError(f"{name}: more than {MAX_TABLE_NBYTES} bytes when decoded; refused")
                groups.append(group.cast(schema))
            metadata = parquet.metadata.metadata or {}
            rows = pa.concat_tables(groups).combine_chunks()
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise PackError(f"{name}: not a readable table: {' '.join(str(error).split())[:200]}") from error
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise PackError(f"{name}: column {field.name} holds nulls; it identifies the row and cannot")
    if metadata.get(TABLE_KEY) != table.encode():
        raise PackError(f"{name}: its metadata does not say that it is the table {table!r}")
    return ReadTable(rows, metadata.get(CONTRACT_KEY, b"").decode("ascii", "replace"))


def _opened(file: BinaryIO, dictionaries: list[str] | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        file,
        read_dictionary=dictionaries,
        thrift_string_size_limit=_MAX_FOOTER_TEXT_NBYTES,
        thrift_container_size_limit=_MAX_FOOTER_LIST,
    )


def _check_footer(name: str, schema: pa.Schema, parquet: pq.ParquetFile) -> None:
    """Refuse other columns and absurd sizes by what the footer says, before any page is decoded."""
    found = [(field.name, _value_type(field.type), field.nullable) for field in parquet.schema_arrow]
    for expected in schema:
        if (expected.name, expected.type, expected.nullable) not in found:
            null = "" if expected.nullable else " not null"
            raise PackError(f"{name}: column {expected.name} ({expected.type}{null}) is missing or of another type")
    if len(found) != len(schema):
        names = [column for column, _, _ in found]
        extra = next((column for column in names if column not in schema.names or names.count(column) > 1), "")
        fault = f"column {extra!r} twice" if extra in schema.names else f"unknown column {extra[:80]!r}"
        raise PackError(f"{name}: {fault}; columns are {', '.join(schema.names)}")
    footer = parquet.metadata
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    if any(group.num_rows > ROW_GROUP_ROWS for group in groups):
        raise PackError(f"{name}: a row group of more than {ROW_GROUP_ROWS} rows")
    if footer.num_rows > MAX_ROWS or sum(group.total_byte_size for group in groups) > MAX_TABLE_NBYTES:
        raise PackError(f"{name}: claims more than {MAX_ROWS} rows or {MAX_TABLE_NBYTES} bytes; refused")


def _decoded_nbytes(column: pa.ChunkedArray) -> int:
    """Bytes of a column once its dictionary is expanded."""
    nbytes = column.nbytes
    for chunk in column.chunks:
        if isinstance(chunk, pa.DictionaryArray):
            lengths = pc.take(pc.binary_length(chunk.dictionary), chunk.indices)
            nbytes += int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0)
    return nbytes


def _value_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if isinstance(data_type, pa.DictionaryType) else data_type
