"""Where items lie in the store, whether they are done, and what finished ones hold. Needs no torch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from kvassay.pack.strict_json import parse_json
from kvassay.pack.tables import read_table, table_file
from kvassay.scale.cell import Item
from kvassay.scale.store import Store, StoredFolder


def folder_of(item: Item) -> str:
    whole = whole_folder(item)
    return whole if item.parts == 1 else f"{whole}/parts/{item.part + 1}-of-{item.parts}"


def whole_folder(item: Item) -> str:
    return f"{'references' if item.cell is None else 'cells'}/{item.owner_id}"


def is_done(store: Store, item: Item) -> bool:
    """Whether this item, or the whole that it is a part of, is finished."""
    if store.folder(whole_folder(item), item.owner_id) is not None:
        return True
    return item.parts > 1 and store.folder(folder_of(item), item.id) is not None


def whole_is_done(store: Store, item: Item) -> bool:
    return store.folder(whole_folder(item), item.owner_id) is not None


def read_rows(store: Store, folder: str, manifest: StoredFolder, table: str) -> Any:
    """The rows of a table as Arrow, checked; None where the cell has none."""
    name = f"{table}.parquet"
    if name not in manifest.files:
        return None
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, table_file(table))
        path.parent.mkdir()
        path.write_bytes(store.file(folder, manifest, name))
        return read_table(Path(place), table).rows


def read_record(store: Store, folder: str, manifest: StoredFolder) -> dict[str, Any]:
    return read_json(store, folder, manifest, "record.json")


def read_run(store: Store, folder: str, manifest: StoredFolder) -> dict[str, Any]:
    return read_json(store, folder, manifest, "run.json")


def read_units(store: Store, reference: str) -> dict[str, str]:
    """Digests of a finished reference's files, by file."""
    folder = f"references/{reference}"
    manifest = store.folder(folder, reference)
    return {} if manifest is None else read_json(store, folder, manifest, "units.json")


def read_json(store: Store, folder: str, manifest: StoredFolder, name: str) -> Any:
    return parse_json(store.file(folder, manifest, name), f"{folder}/{name}")
