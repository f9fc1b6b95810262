"""Canonical JSON and digests.

A digest names content, so it must come out equal in every process and on every platform. Canonical JSON is
RFC 8785 (JCS); the hash is SHA-256, written as 64 hexadecimal digits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import rfc8785

from kvassay.core.regular_file import open_regular

_CHUNK_NBYTES = 1 << 20


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of a JSON value (dict, list, str, int, float, bool, None)."""
    return rfc8785.dumps(value)


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_json(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces so that a large model does not fill memory."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(_CHUNK_NBYTES):
            digest.update(piece)
    return digest.hexdigest()
