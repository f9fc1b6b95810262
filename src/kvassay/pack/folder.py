"""Result folders: fresh, whole or absent, with a manifest of hashes.

A folder is written beside its place under a hidden name and put in place by one rename, so a crash at any
moment leaves either nothing at `out` or a complete folder. The assess pack and the experiment folder share
this code.

    with FolderWriter(Path("result"), "kvassay.experiment/1") as folder:
        folder.write_json("config.json", {"seed": 7})
        arrays_path = folder.file_path("arrays/keys.safetensors")  # a place to write to by other means
        manifest = folder.commit()
    checks = verify_files(Path("result"), read_manifest(Path("result"), "kvassay.experiment/1"))
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import kvassay
from kvassay.core.digest import sha256_file
from kvassay.errors import PackError
from kvassay.pack.files import read_manifest, read_schema, verify_files
from kvassay.pack.manifest import (
    MANIFEST_NAME,
    MAX_NAME_LENGTH,
    Manifest,
    check_file_name,
    parse_manifest,
    render_manifest,
    root_digest,
)
from kvassay.pack.outside import refuse_inside_result
from kvassay.pack.plain_files import list_files
from kvassay.pack.signals import signals_held
from kvassay.pack.strict_json import render_json

__all__ = ["EXPERIMENT_SCHEMA", "FolderWriter", "read_manifest", "read_schema", "verify_files"]

EXPERIMENT_SCHEMA = "kvassay.experiment/1"

_NO_ROOM = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process may write",
    errno.EROFS: "the file system is read-only",
}


class FolderWriter:
    """A folder in the making. `out` is the final path; until `commit` everything lies in `partial`.

    Use it as a context manager: leaving it without `commit`, by an error or otherwise, removes `partial`. An
    OSError for want of room becomes a PackError that names the path.

    Raises PackError at construction, before any work, when `out` exists in any form (R107) or when its parent
    cannot be created or written to.
    """

    def __init__(self, out: Path, schema: str, manifest_type: type[Manifest] = Manifest) -> None:
        self.out = Path(os.path.abspath(out))
        self.schema = schema
        self._manifest_type = manifest_type
        self._committed = False
        self._made_parents: list[Path] = []
        if not self.out.name:
            raise PackError(f"output folder {str(out)!r} has no name; give a path that does not exist yet")
        self._refuse_existing()
        refuse_inside_result(out)
        self.partial = self.out.with_name(_partial_name(self.out.name))
        try:
            self._make_parents(self.out.parent)
            self._refuse_long_names()
            # Making the folder shows that the parent can be written to: at the start, not after the run.
            self.partial.mkdir()
        except OSError as error:
            self._remove_made_parents()
            raise PackError(f"output folder {str(self.out)!r} cannot be created: {error.strerror}") from error
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._committed:
            return
        self.discard()
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise self._no_room(error, str(error.filename or self.out)) from error

    def file_path(self, name: str) -> Path:
        """The path at which to write file `name` (`rows/tokens.parquet`); its folder exists afterwards."""
        path = self.partial / check_file_name(name)
        with self.reporting_no_room(name):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file; raises FileExistsError when it was written before."""
        path = self.file_path(name)
        with self.reporting_no_room(name), path.open("xb") as file:
            file.write(data)

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON value; raises PackError for NaN and infinity, since absent is null, not a number."""
        try:
            data = render_json(value)
        except PackError as error:
            raise PackError(f"{name}: {error}") from error
        self.write_bytes(name, data)

    def commit(self, facts: Mapping[str, object] | None = None) -> Manifest:
        """Hash all files, write the manifest, sync and rename; the returned manifest's `root` names the
        folder.

        `facts` are the further fields of the manifest type. Raises PackError when a file is a link or badly
        named, when there is no room, or when `out` has come into being meanwhile; the partial folder is
        removed then.
        """
        try:
            manifest = self._manifest(facts or {})
            with self.reporting_no_room(MANIFEST_NAME):
                (self.partial / MANIFEST_NAME).write_bytes(render_manifest(manifest))
                _sync_tree(self.partial)
            self._put_in_place()
        except BaseException:
            self.discard()
            raise
        return manifest

    def discard(self) -> None:
        """Remove the partial folder and the parents made for it. Does nothing after `commit`."""
        if not self._committed:
            with signals_held():
                shutil.rmtree(self.partial, ignore_errors=True)
                self._remove_made_parents()

    @contextmanager
    def reporting_no_room(self, name: str) -> Generator[None]:
        """Turn an OSError for want of room, raised while file `name` is written, into a PackError."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise self._no_room(error, str(self.out / name)) from error
            raise

    def _manifest(self, facts: Mapping[str, object]) -> Manifest:
        found = list_files(self.partial)
        if found.odd or found.has_manifest or found.has_signatures:
            raise PackError(
                f"{found.odd[0] if found.odd else MANIFEST_NAME}: a result folder in the making holds regular files "
                "only, and neither manifest nor signatures"
            )
        files = {name: _file_entry(self.partial / check_file_name(name)) for name in found.names}
        value: dict[str, Any] = {
            "schema": self.schema,
            "kvassay_version": kvassay.__version__,
            "created_utc": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **facts,
            "files": files,
        }
        value["root"] = root_digest(value)
        # Parsed as a reader will parse it, so that a folder that could not be read back is never put in
        # place.
        return parse_manifest(render_json(value), self.schema, self._manifest_type)

    def _put_in_place(self) -> None:
        self._refuse_existing()
        try:
            # A rename replaces no file and no folder that holds anything, so a racing writer's result
            # survives.
            os.rename(self.partial, self.out)
        except OSError as error:
            raise PackError(f"output folder {str(self.out)!r} cannot be put in place: {error.strerror}") from error
        self._committed = True
        with suppress(OSError):  # the folder is whole and in place; some file systems cannot sync a folder
            _sync(self.out.parent)

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.out):
            raise PackError(f"output folder {str(self.out)!r} already exists; give a path that does not exist yet")

    def _refuse_long_names(self) -> None:
        """Raise OSError now where the final path, or a file in it, would be too long for the rename at the end."""
        for path in (self.out, self.out / ("x" * MAX_NAME_LENGTH)):
            with suppress(FileNotFoundError):
                os.lstat(path)

    def _make_parents(self, parent: Path) -> None:
        missing: list[Path] = []
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        for path in reversed(missing):
            path.mkdir()
            self._made_parents.append(path)

    def _remove_made_parents(self) -> None:
        while self._made_parents:
            with suppress(OSError):  # not empty: someone else uses it by now
                self._made_parents.pop().rmdir()

    def _no_room(self, error: OSError, path: str) -> PackError:
        reason = _NO_ROOM[error.errno or errno.ENOSPC]
        return PackError(f"{path!r} cannot be written: {reason}; free some or choose another output folder")


def _partial_name(name: str) -> str:
    """A hidden name that begins like `name` and is as short as every file system takes (names are bounded in bytes)."""
    beginning = os.fsencode(name)[:60].decode("utf-8", "ignore")
    return f".{beginning}.partial-{secrets.token_hex(6)}"


def _file_entry(path: Path) -> dict[str, object]:
    return {"sha256": sha256_file(path), "nbytes": path.stat().st_size}


def _sync_tree(folder: Path) -> None:
    """Sync every file and folder below and including `folder`: the rename must never show a hollow file."""
    for base, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(base, name))
        _sync(Path(base))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
