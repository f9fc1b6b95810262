"""The file of one part of one block: safetensors, whose header follows from what is asked for.

A reader knows the identity, the key, the arrays and their sizes before it opens a file. So it builds the header that a
whole and untouched file must have, with the hash of the bytes it read, and compares: nothing in a file is believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvassay.cache.prefix_identity import SCHEMA, PrefixIdentity
from kvassay.core.digest import canonical_json, sha256_bytes
from kvassay.core.prefix_blocks import BlockArray
from kvassay.errors import ForeignFormatError, PrefixStoreError, printable

METADATA_KEY = "kvassay.prefix"
_MAX_HEADER_NBYTES = 1 << 24


class BlockFile(NamedTuple):
    """What a file holds if it is what its name says."""

    identity: PrefixIdentity
    key: str
    part: str
    block: int
    arrays: tuple[BlockArray, ...]

    @property
    def name(self) -> str:
        return f"{self.key}.{self.part}.safetensors"

    @property
    def nbytes(self) -> int:
        """Size of the whole file."""
        return len(self._header("0" * 64)) + self._data_nbytes

    def encoded(self, raw: Mapping[str, Tensor]) -> bytes:
        """The file's bytes; `raw` has each array `[pages, page_nbytes]` uint8."""
        data = b"".join(raw[array.name].cpu().contiguous().numpy().tobytes() for array in self.arrays)
        assert len(data) == self._data_nbytes, "the arrays are those of the block"
        return self._header(sha256_bytes(data)) + data

    def decoded(self, content: bytes) -> dict[str, Tensor]:
        """The arrays of a file's bytes.

        Raises ForeignFormatError, which names the field, where the file says that it was made under another identity,
        and PrefixStoreError where it is not, byte for byte, what a writer leaves.
        """
        begin = len(content) - self._data_nbytes
        if begin < 0 or content[:begin] != self._header(sha256_bytes(content[begin:])):
            self._refuse_foreign(content)
            raise PrefixStoreError(
                f"{self.name} has {len(content)} bytes that are not those that were written (expected {self.nbytes} "
                "bytes whose header and hash fit); it is not used"
            )
        found: dict[str, Tensor] = {}
        data = bytearray(content[begin:])  # torch wants memory that may be written
        place = 0
        for array in self.arrays:
            flat = torch.frombuffer(data, dtype=torch.uint8, count=array.nbytes, offset=place)
            found[array.name] = flat.view(array.pages, array.layout.nbytes)
            place += array.nbytes
        return found

    @property
    def _data_nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def _header(self, sha256: str) -> bytes:
        told = {
            "schema": SCHEMA,
            "identity": self.identity.digest,
            "made_for": self.identity.public_fields,
            "key": self.key,
            "part": self.part,
            "block": self.block,
            "sha256": sha256,
        }
        table: dict[str, object] = {"__metadata__": {METADATA_KEY: canonical_json(told).decode()}}
        place = 0
        for array in self.arrays:
            table[array.name] = {
                "dtype": "U8",
                "shape": [array.pages, array.layout.nbytes],
                "data_offsets": [place, place + array.nbytes],
            }
            place += array.nbytes
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def _refuse_foreign(self, content: bytes) -> None:
        """Raise ForeignFormatError where a readable header names another identity."""
        told = _told(content)
        if told is None or told.get("identity") == self.identity.digest:
            return
        made_for = told.get("made_for")
        other: dict[str, Any] = made_for if isinstance(made_for, dict) else {}
        for field, expected in self.identity.public_fields.items():
            if other.get(field) != expected:
                raise ForeignFormatError(
                    f"{self.name} was made for {field} {printable(str(other.get(field)))[:80]!r}, asked for is "
                    f"{printable(str(expected))[:80]!r}; blocks are read under the identity that made them alone"
                )


def _told(content: bytes) -> dict[str, Any] | None:
    """What a file's metadata says of it; None where it says nothing readable."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _MAX_HEADER_NBYTES):
        return None
    try:
        told = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][METADATA_KEY])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return told if isinstance(told, dict) else None
