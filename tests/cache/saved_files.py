"""A saved cache taken apart and put together again with hashes that fit, as someone who means harm would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvassay.cache.saved_cache import METADATA_KEY
from kvassay.core.digest import canonical_json, sha256_bytes, sha256_json

NUMPY = {"I32": "<i4", "U8": "u1"}


@dataclass
class TakenApart:
    header: dict[str, Any]
    """Our metadata entry."""
    arrays: dict[str, np.ndarray]
    table: dict[str, dict[str, Any]]
    """The container's entries; made anew from `arrays` unless `keeps_table`."""
    keeps_table: bool = False
    keeps_hashes: bool = False

    def name(self, part: str, number: int = 0) -> str:
        """An array by what its name holds."""
        return [name for name in self.arrays if part in name][number]


def take_apart(path: Path) -> TakenApart:
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8:begin])
    header = json.loads(table.pop("__metadata__")[METADATA_KEY])
    arrays = {}
    for name, entry in table.items():
        low, high = entry["data_offsets"]
        arrays[name] = (
            np.frombuffer(raw[begin + low : begin + high], NUMPY[entry["dtype"]]).reshape(entry["shape"]).copy()
        )
    return TakenApart(header, arrays, table)


def put_together(parts: TakenApart, path: Path) -> None:
    data = b""
    for name, array in parts.arrays.items():
        if not parts.keeps_table:
            parts.table[name] = {
                "dtype": {"int32": "I32", "uint8": "U8"}[str(array.dtype)],
                "shape": list(array.shape),
                "data_offsets": [len(data), len(data) + array.nbytes],
            }
        data += array.tobytes()
    header = parts.header
    if not parts.keeps_hashes:
        if isinstance(header.get("arrays"), dict):
            header["arrays"] = {
                name: sha256_bytes(parts.arrays[name].tobytes()) if name in parts.arrays else digest
                for name, digest in header["arrays"].items()
            }
        header["digest"] = sha256_json({name: value for name, value in header.items() if name != "digest"})
    text = json.dumps({"__metadata__": {METADATA_KEY: canonical_json(header).decode()}, **parts.table}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
