"""SQL over the rows of finished cells and of packs, by DuckDB, without copying them.

Views: `tokens`, `items`, `tensors`, `generations`, `answers` (the row tables, each with the columns `source`, `model`,
`workload` and `seed` in front), `cells` (one row a finished cell) and `verdicts` (one row a clause of a pack).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from kvassay.core.contract import Contract
from kvassay.core.records import Verdicts
from kvassay.errors import MissingExtraError, UsageError
from kvassay.pack import layout
from kvassay.pack.files import read_manifest
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import check_whole, read_object, read_record, recorded_model_name
from kvassay.pack.tables import TABLE_COLUMNS, arrow_schema, table_file
from kvassay.scale.cell import Group
from kvassay.scale.store import Store

_SOURCE = pa.schema(
    [
        pa.field("filename", pa.string()),
        pa.field("source", pa.string()),
        pa.field("model", pa.string()),
        pa.field("workload", pa.string()),
        pa.field("seed", pa.int64()),
    ]
)
_CELLS = ("id", "model", "workload", "seed", "format", "role", "seconds", "host", "result_sha256")
_VERDICTS = (
    "source",
    "model",
    "workload",
    "seed",
    "format",
    "role",
    "clause",
    "slice",
    "outcome",
    "estimate",
    "lower",
    "upper",
    "limit",
    "n",
)


class Answer(NamedTuple):
    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(sql: str, store: Store | None, groups: Sequence[Group], packs: Sequence[Path] = ()) -> Answer:
    """Run one statement; raises UsageError with DuckDB's message where it cannot be run, and PackError for a pack whose
    files are not as its manifest says. A pack that is named twice, by whatever path, is one."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("kvassay query needs DuckDB: pip install 'kvassay[scale]'") from error
    connection = duckdb.connect(":memory:", config={"memory_limit": "1GB"})
    files: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLE_COLUMNS}
    cells: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    if store is not None:
        if store.local_root is None:
            connection.register_filesystem(store.file_system)
        _add_cells(store, groups, files, cells)
    for pack in {os.path.realpath(pack): pack for pack in reversed(packs)}.values():
        _add_pack(pack, files, verdicts)
    connection.register("cells", _table(cells, _CELLS, {"seed": pa.int64(), "seconds": pa.float64()}))
    numbers = dict.fromkeys(("estimate", "lower", "upper", "limit"), pa.float64())
    connection.register("verdicts", _table(verdicts, _VERDICTS, {"seed": pa.int64(), "n": pa.int64(), **numbers}))
    try:
        for table, sources in files.items():
            _view(connection, table, sources)
        found: Any = connection.execute(sql)
        if found is None:  # an empty text, or a comment alone
            return Answer([], [])
        return Answer([column[0] for column in found.description or ()], found.fetchall())
    except duckdb.Error as error:
        raise UsageError(f"the query cannot be run: {' '.join(str(error).split())[:500]}") from error


def _add_cells(
    store: Store, groups: Sequence[Group], files: dict[str, list[dict[str, Any]]], cells: list[dict[str, Any]]
) -> None:
    """A cell that several groups share is listed once, under the first."""
    seen: set[str] = set()
    for group in groups:
        for cell in group.cells:
            folder = f"cells/{cell.id}"
            manifest = None if cell.id in seen else store.folder(folder, cell.id)
            if manifest is None:
                continue
            seen.add(cell.id)
            named = {"model": group.model.name, "workload": group.workload, "seed": group.seed}
            for table in TABLE_COLUMNS:
                entry = manifest.files.get(f"{table}.parquet")
                if entry is not None:
                    where = store.address(f"{folder}/{entry.name}")
                    files[table].append({"filename": where, "source": cell.id, **named})
            facts = {"format": cell.arm, "role": cell.role.value, "result_sha256": manifest.result_sha256}
            told = {key: manifest.facts[key] for key in ("seconds", "host")}
            cells.append({"id": cell.id, **named, **facts, **told})


def _add_pack(pack: Path, files: dict[str, list[dict[str, Any]]], verdicts: list[dict[str, Any]]) -> None:
    check_whole(pack, cast("PackManifest", read_manifest(pack, layout.PACK_SCHEMA, layout.PackManifest)))
    contract = read_record(pack, layout.CONTRACT_JSON, Contract)
    named = {
        "source": str(pack),
        "model": recorded_model_name(read_object(pack, layout.SUBJECT)),
        "workload": contract.name,
        "seed": contract.inference.seed,
    }
    for table in TABLE_COLUMNS:
        files[table].append({"filename": str(pack / table_file(table)), **named})
    for judged in read_record(pack, layout.VERDICTS, Verdicts).formats:
        for clause in judged.clauses:
            told = {key: getattr(clause, key) for key in _VERDICTS[6:]}
            told["outcome"] = clause.outcome.value
            verdicts.append({**named, "format": judged.arm, "role": judged.role.value, **told})


def _view(connection: Any, table: str, sources: list[dict[str, Any]]) -> None:
    """Rows beside what their file is of; a table without any file is empty and has its columns."""
    if not sources:
        empty = arrow_schema(table)
        connection.register(table, pa.schema([*list(_SOURCE)[1:], *empty]).empty_table())
        return
    connection.register(f"files_of_{table}", pa.Table.from_pylist(sources, schema=_SOURCE))
    listed = ", ".join("'" + source["filename"].replace("'", "''") + "'" for source in sources)
    connection.execute(
        f"CREATE VIEW {table} AS SELECT f.source, f.model, f.workload, f.seed, r.* EXCLUDE (filename) "
        f"FROM read_parquet([{listed}], filename = true) r JOIN files_of_{table} f USING (filename)"
    )


def _table(rows: list[dict[str, Any]], columns: Sequence[str], types: dict[str, Any]) -> pa.Table:
    schema = pa.schema([pa.field(name, types.get(name, pa.string())) for name in columns])
    return pa.Table.from_pylist(rows, schema=schema)
