"""From what a worker measured to the files of a cell, whole or from its parts, always in the same bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvassay.errors import StoreError
from kvassay.pack.row_writer import RowWriter
from kvassay.pack.strict_json import render_json
from kvassay.pack.tables import TABLE_COLUMNS
from kvassay.scale.cell import Item
from kvassay.scale.cell_files import folder_of, read_json, read_record, read_rows, whole_folder, whole_is_done
from kvassay.scale.measure import CellResult, ReferenceResult
from kvassay.scale.store import Store, StoredFolder

CELL_SCHEMA = "kvassay.cell/1"
PART_SCHEMA = "kvassay.cell-part/1"
REFERENCE_SCHEMA = "kvassay.reference/1"
MOST_EXAMPLES = 5
"""Worst cases that are kept of a cell, as `assess.examples` keeps of an arm."""


def write_cell(store: Store, item: Item, result: CellResult, log: str) -> bool:
    """Put a measured cell, or part, in place; false where another worker was first."""
    results = {f"{table}.parquet": _parquet(table, chunks, item) for table, chunks in result.chunks.items()}
    chunks = {table: [_rows(columns) for columns in parts] for table, parts in result.chunks.items()}
    results["record.json"] = render_json({**result.record, "chunks": chunks})
    others = {"run.json": render_json(result.run), "log.txt": log.encode()}
    schema = CELL_SCHEMA if item.parts == 1 else PART_SCHEMA
    return store.commit(folder_of(item), schema, item.id, results, others, _facts(item, result.run))


def write_reference(store: Store, item: Item, result: ReferenceResult) -> bool:
    results = {"units.json": render_json({file: store.sha256(file) for file in sorted(set(result.files))})}
    schema = REFERENCE_SCHEMA if item.parts == 1 else PART_SCHEMA
    others = {"run.json": render_json(result.run)}
    return store.commit(folder_of(item), schema, item.id, results, others, _facts(item, result.run))


def assemble(store: Store, item: Item) -> bool:
    """Make the whole from its parts, once all are there; whether it was made here."""
    try:
        return _assemble(store, item)
    except StoreError:
        # Another worker may have made it in the meantime and removed the parts that were being read.
        if whole_is_done(store, item):
            return False
        raise


def _assemble(store: Store, item: Item) -> bool:
    parts = [item._replace(part=part) for part in range(item.parts)]
    found = [(folder_of(part), store.folder(folder_of(part), part.id)) for part in parts]
    folders = [(folder, manifest) for folder, manifest in found if manifest is not None]
    if len(folders) < item.parts:
        return False
    whole = item._replace(part=0, parts=1)
    runs = [read_json(store, folder, manifest, "run.json") for folder, manifest in folders]
    if item.cell is None:
        units: dict[str, str] = {}
        for folder, manifest in folders:
            units |= read_json(store, folder, manifest, "units.json")
        results = {"units.json": render_json(dict(sorted(units.items())))}
        run = _sum_runs(runs)
        others = {"run.json": render_json(run)}
        made = store.commit(whole_folder(item), REFERENCE_SCHEMA, item.owner_id, results, others, _facts(whole, run))
    else:
        result, log = _joined(store, folders, runs)
        made = write_cell(store, whole, result, log)
    store.remove(f"{whole_folder(item)}/parts")
    return made


def _joined(
    store: Store, folders: Sequence[tuple[str, StoredFolder]], runs: Sequence[dict[str, Any]]
) -> tuple[CellResult, str]:
    records = [read_record(store, folder, manifest) for folder, manifest in folders]
    chunks: dict[str, list[Any]] = {}
    for (folder, manifest), record in zip(folders, records, strict=True):
        for table in TABLE_COLUMNS:
            rows = read_rows(store, folder, manifest, table)
            begin = 0
            for count in record["chunks"].get(table, ()):
                chunks.setdefault(table, []).append(rows.slice(begin, count))
                begin += count
    record = {key: value for part in reversed(records) for key, value in part.items() if key != "chunks"}
    record["arm"] = {
        **records[0]["arm"],
        **{key: sum(part["arm"][key] for part in records) for key in ("clipped_values", "encoded_values")},
    }
    worst = sorted((found for part in records for found in part["examples"]), key=lambda found: -found["kl_nats"])
    record["examples"] = worst[:MOST_EXAMPLES]
    log = "".join(store.file(folder, manifest, "log.txt").decode() for folder, manifest in folders)
    # The order of keys is that of a cell that was never split.
    ordered = {key: record[key] for key in records[0] if key != "chunks"}
    return CellResult(chunks, ordered, _sum_runs(runs)), log


def _sum_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Work of all parts together; the rest as the first part says it."""
    names = dict.fromkeys(name for run in runs for name in run["seconds"])
    summed = {
        **runs[0],
        "seconds": {name: sum(run["seconds"].get(name, 0.0) for run in runs) for name in names},
        "finished_utc": max(run["finished_utc"] for run in runs),
        "started_utc": min(run["started_utc"] for run in runs),
    }
    for key in ("reference_tokens", "reused_tokens"):
        if key in runs[0]:
            summed[key] = sum(run[key] for run in runs)
    return summed


def _facts(item: Item, run: dict[str, Any]) -> dict[str, Any]:
    """What `kvassay status` needs without opening further files."""
    return {
        "label": item.label,
        "seconds": sum(run["seconds"].values()),
        "host": run["host"],
        **{key: run[key] for key in ("reference_tokens", "reused_tokens") if key in run},
    }


def _parquet(table: str, chunks: Sequence[Any], item: Item) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "rows.parquet")
        rows = RowWriter(path, table, item.group.workload_sha256)
        for columns in chunks:
            rows.append(columns)
        rows.close()
        return path.read_bytes()


def _rows(columns: Any) -> int:
    return int(columns.num_rows) if hasattr(columns, "num_rows") else len(columns["arm"])
