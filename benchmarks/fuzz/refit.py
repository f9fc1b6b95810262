"""Hashes of a container made to fit what a mutation left, as someone who means harm would make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvassay.core.digest import canonical_json, sha256_bytes, sha256_json


def refit_container(file: Path, key: str, digest_of: Callable[[Any], Any], field: str | None) -> None:
    """Recompute each array's hash and the header's digest; `field` is where an entry of `arrays` keeps its hash.

    Raises whatever a mutation's remains raise; the file is unchanged then.
    """
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    header = json.loads(table["__metadata__"][key])
    for name, entry in header["arrays"].items():
        begin, end = table[name]["data_offsets"]
        digest_of(entry)  # the entry has the form that it should have
        found = sha256_bytes(data[begin:end])
        if field is None:
            header["arrays"][name] = found
        else:
            entry[field] = found
    header["digest"] = sha256_json({name: value for name, value in header.items() if name != "digest"})
    table["__metadata__"][key] = canonical_json(header).decode()
    text = json.dumps(table).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
