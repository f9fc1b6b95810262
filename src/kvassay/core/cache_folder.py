"""The user's cache folder, and SHA-256 digests of large files remembered in it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path

from kvassay.core.digest import sha256_bytes, sha256_file

_RACY_SECONDS = 2.0
"""A file younger than this may change again within one tick of its clock, so its digest is not remembered."""


def cache_folder() -> Path:
    """`KVASSAY_CACHE`, else `XDG_CACHE_HOME/kvassay`, else `~/.cache/kvassay`. Not created here."""
    if named := os.environ.get("KVASSAY_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "kvassay"


def remembered_sha256(path: Path) -> str:
    """SHA-256 of a file; computed again only if its path, size, time stamps or inode differ from the last time.

    A cache folder that cannot be read or written costs time, never the result.
    """
    path = path.resolve()
    status = path.stat()
    identity = {
        "path": str(path),
        "nbytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }
    note = cache_folder() / "digests" / f"{sha256_bytes(os.fsencode(path))}.json"
    try:
        known = json.loads(note.read_bytes())
        if known["file"] == identity and len(known["sha256"]) == 64:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    digest = sha256_file(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > _RACY_SECONDS:
        with contextlib.suppress(OSError):
            replace_file(note, json.dumps({"file": identity, "sha256": digest}).encode())
    return digest


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` so that a reader sees the old content or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
