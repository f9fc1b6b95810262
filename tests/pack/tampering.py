"""What an attacker can do to a pack with an editor, with Parquet tools, and with this library itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvassay.core.digest import sha256_file, sha256_json
from kvassay.pack.manifest import OWN_NAMES, root_digest
from kvassay.pack.tables import CONTRACT_KEY, TABLE_COLUMNS, TABLE_KEY, arrow_schema, rows_per_arm


def load(pack: Path, name: str) -> Any:
    return json.loads((pack / name).read_text())


def store(pack: Path, name: str, value: Any) -> None:
    (pack / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def edit(pack: Path, name: str, change: Callable[[Any], None]) -> None:
    value = load(pack, name)
    change(value)
    store(pack, name, value)


def edit_rows(
    pack: Path, table: str, change: Callable[[pa.Table], pa.Table], contract_sha256: str | None = None
) -> None:
    path = pack / "rows" / f"{table}.parquet"
    rows = pq.read_table(path)
    found = pq.read_metadata(path).metadata[CONTRACT_KEY]
    keys = {CONTRACT_KEY: contract_sha256.encode() if contract_sha256 else found, TABLE_KEY: table.encode()}
    changed = change(rows)
    changed = pa.Table.from_arrays(changed.columns, schema=arrow_schema(table).with_metadata(keys))
    pq.write_table(changed, path, compression="zstd")


def flip_byte(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def rehash(pack: Path) -> None:
    """Make the manifest fit whatever the folder holds now: what anyone can do to an unsigned pack."""
    manifest = load(pack, "manifest.json")
    found = [str(path.relative_to(pack)) for path in pack.rglob("*") if path.is_file()]
    names = [name for name in found if name not in OWN_NAMES]
    manifest["files"] = {
        name: {"sha256": sha256_file(pack / name), "nbytes": (pack / name).stat().st_size} for name in sorted(names)
    }
    manifest["contract_sha256"] = sha256_json(load(pack, "contract.json"))
    for table in TABLE_COLUMNS:
        with suppress(pa.ArrowException, OSError):  # a damaged file: the attacker leaves the count as it was
            manifest["row_counts"][table] = rows_per_arm(pq.read_table(pack / "rows" / f"{table}.parquet"))
    manifest["root"] = root_digest(manifest)
    store(pack, "manifest.json", manifest)
