"""The store: files under one fsspec path, each of which is there whole or not at all.

    plans/DIGEST.json            what was asked
    references/ID/manifest.json  a finished reference; its files are in units/
    units/ID.safetensors         one document of a reference: hidden states, and keys and values where cells need them
    cells/ID/manifest.json       a finished cell; it lists the cell's other files
    claims/ID.json               who works on it now
    failures/ID/*.json           tries that failed

A folder is done when its manifest is there, which comes last and by one rename (on object stores by one PUT). Its files
are named by their content, so two workers that finish the same cell write the same names and neither breaks the other.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict, ValidationError

from kvassay.core.digest import sha256_bytes
from kvassay.errors import PackError, StoreError
from kvassay.pack.strict_json import parse_json, render_json
from kvassay.scale.process import is_mark_of_dead, process_mark

MANIFEST = "manifest.json"
_PARTIAL = ".partial-"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REMOVAL_TRIES = 10
"""Of a folder that others write into or remove as well; what is left then is swept with the next run."""


class StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    sha256: str
    nbytes: int


class StoredFolder(BaseModel):
    """The manifest of a finished reference, cell or part."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: str
    id: str
    result_sha256: str
    """Of what must come out equal wherever and however often it is run."""
    files: dict[str, StoredFile]
    facts: dict[str, Any]


class Store:
    """Whole files under a path or URL that fsspec knows."""

    def __init__(self, url: str, **options: Any) -> None:
        """`options` go to the file system (`endpoint_url`, credentials); raises StoreError for an unknown protocol."""
        if not url.strip():
            raise StoreError("the store has no name; expected a folder, or a URL that fsspec knows (s3://bucket/path)")
        self.url = url
        self.options = options
        try:
            fs, root = url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise StoreError(f"store {url!r} cannot be opened: {error}; install the fsspec package it needs") from error
        self._fs: Any = fs
        self._root = root.rstrip("/")
        self._local = isinstance(fs, LocalFileSystem)
        if self._local and os.path.exists(self._root) and not os.path.isdir(self._root):
            raise StoreError(f"store {url!r} is a file; expected a folder, or a path at which there is nothing yet")

    @property
    def local_root(self) -> str | None:
        """The folder, where it is one of this machine's file systems."""
        return self._root if self._local else None

    @property
    def file_system(self) -> Any:
        """The fsspec file system, for readers that take one."""
        return self._fs

    def address(self, name: str) -> str:
        """A file's path on this machine, or its URL."""
        return self._path(name) if self._local else self._fs.unstrip_protocol(self._path(name))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        self._fs.invalidate_cache()
        try:
            with self._reporting(name, "read"):
                return self._fs.cat_file(self._path(name))
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        self._fs.invalidate_cache()
        with self._reporting(name, "read"):
            return bool(self._fs.exists(self._path(name)))

    def sha256(self, name: str) -> str:
        """Digest of a file that is there."""
        data = self.read(name)
        assert data is not None, "only files that were put are hashed"
        return sha256_bytes(data)

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder, sorted; hidden ones, which are half-written, are left out."""
        self._fs.invalidate_cache()
        try:
            with self._reporting(folder, "listed"):
                found = self._fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(name for name in names if not name.startswith("."))

    def put(self, name: str, data: bytes) -> None:
        """Write a file as a whole, in place of one of that name; raises StoreError where there is no room."""
        path = self._path(name)
        with self._reporting(name, "written"):
            if not self._local:
                self._fs.pipe_file(path, data)
                return
            partial = self._write_partial(path, data)
            os.replace(partial, path)

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file unless one of that name is there; whether it was written."""
        path = self._path(name)
        with self._reporting(name, "written"):
            if not self._local:
                return self._put_new_remote(path, data)
            partial = self._write_partial(path, data)
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(partial)
            return True

    def remove(self, name: str) -> None:
        """Remove a file or folder; none there is well too. What others keep writing into it may stay."""
        for _ in range(_REMOVAL_TRIES):
            try:
                with self._reporting(name, "removed"):
                    self._fs.rm(self._path(name), recursive=True)
                return
            except FileNotFoundError:  # it, or only something in it that another worker removed first
                if not self.exists(name):
                    return
            except StoreError as error:
                if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOTEMPTY):
                    raise  # not one that another worker is just writing into

    def commit(
        self, folder: str, schema: str, identity: str, results: dict[str, bytes], others: dict[str, bytes], facts: Any
    ) -> bool:
        """Put a finished folder in place; false where another worker was first, whose folder stays.

        `results` are files whose bytes every run gives; `others` tell of this run.
        """
        files: dict[str, StoredFile] = {}
        for name, data in {**results, **others}.items():
            digest = sha256_bytes(data)
            stem, _, end = name.partition(".")
            stored = f"{stem}-{digest[:16]}.{end}"
            if not self.exists(f"{folder}/{stored}"):
                self.put(f"{folder}/{stored}", data)
            files[name] = StoredFile(name=stored, sha256=digest, nbytes=len(data))
        manifest = StoredFolder(
            schema_version=schema,
            id=identity,
            result_sha256=sha256_bytes(b"".join(f"{name} {files[name].sha256}\n".encode() for name in sorted(results))),
            files=files,
            facts=facts,
        )
        name, data = f"{folder}/{MANIFEST}", render_json(manifest.model_dump(mode="json"))
        if self.put_new(name, data):
            return True
        if self.folder(folder, identity) is not None:
            return False
        self.put(name, data)  # what stands there is no manifest
        return True

    def folder(self, folder: str, identity: str) -> StoredFolder | None:
        """The manifest of a finished folder; None where it is not finished.

        A manifest that cannot be read is none, so that the work is done again and takes its place (`commit`). It is not
        removed here: who asks how far a store is changes nothing in it.
        """
        data = self.read(f"{folder}/{MANIFEST}")
        if data is None:
            return None
        try:
            found = StoredFolder.model_validate(parse_json(data, MANIFEST))
        except (PackError, ValidationError):
            return None
        return found if found.id == identity else None

    def file(self, folder: str, found: StoredFolder, name: str) -> bytes:
        """A file of a finished folder, checked; raises StoreError if it is not what was written."""
        entry = found.files[name]
        data = self.read(f"{folder}/{entry.name}")
        if data is None or sha256_bytes(data) != entry.sha256:
            state = "is missing" if data is None else "is not what was written"
            raise StoreError(
                f"{self.url}/{folder}/{entry.name} {state}; remove {folder} from the store and run the matrix again"
            )
        return data

    def sweep(self) -> int:
        """Remove what killed processes of this machine were writing; how many files that were.

        Parts of a whole that is finished go too: a late worker may have written one while others removed them.
        """
        removed = 0
        for folder, inside, names in os.walk(self._root) if self._local else ():
            place = os.path.relpath(folder, self._root)
            if "parts" in inside and self.folder(place, os.path.basename(folder)) is not None:
                inside.remove("parts")
                self.remove(f"{place}/parts")
            for name in names:
                mark = name.rpartition(_PARTIAL)[2].rpartition(".")[0]
                if name.startswith(".") and mark and is_mark_of_dead(mark):
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(folder, name))
                        removed += 1
        return removed

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _reporting(self, name: str, done: str) -> Generator[None]:
        """An error of the file system or of the service behind it is one of the store, and of no cell: no other item
        would fare better. That a file which is read is missing is an answer, and goes on as it is."""
        try:
            yield
        except Exception as error:  # each service has errors of its own, which have no common kind
            if isinstance(error, FileNotFoundError) and done != "written":
                raise
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                way_out = "free some room and run again"
            else:
                way_out = "check " + ("who may read and write there" if self._local else "address, access and network")
            said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise StoreError(f"{self.url}/{name} cannot be {done}: {said}; {way_out}") from error

    def _put_new_remote(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "At least one of the pre-conditions" in str(error):
                return False
            raise
        return True

    def _write_partial(self, path: str, data: bytes) -> str:
        """The data under a hidden name beside its place, on disk and not only in memory."""
        folder, name = os.path.split(path)
        partial = os.path.join(folder, f".{name[:60]}{_PARTIAL}{process_mark()}.{secrets.token_hex(6)}")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                os.unlink(partial)
            raise
        return partial
