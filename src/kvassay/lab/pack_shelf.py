"""The packs below one folder. The page names them by number and never by path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.errors import KvassayError, PackError, printable
from kvassay.pack.files import read_schema
from kvassay.pack.layout import PACK_SCHEMA
from kvassay.pack.manifest import MANIFEST_NAME
from kvassay.pack.plain_files import list_files, read_plain
from kvassay.pack.reader import PackContent, read_whole_pack, recorded_model_name
from kvassay.report.findings import Findings, find

MAX_PACKS = 200
MAX_DEPTH = 2
_MAX_FOLDERS = 2000
_MAX_FILE_NBYTES = 64 << 20
_KEPT = 4


class Shelved(NamedTuple):
    number: int
    path: Path
    name: str
    """Relative to the folder of the shelf."""


class FileState(NamedTuple):
    name: str
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int


class PackShelf:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packs: dict[int, Shelved] = {}
        self._numbers: dict[Path, int] = {}
        # What was read and hashed once may be kept, as long as the same files are there: a run may be removed, and
        # another one take its place.
        self._read = lru_cache(maxsize=_KEPT)(_read_with_findings)

    def list(self) -> dict[str, Any]:
        """All packs found now, newest first; a number, once given, stays that pack's."""
        found: list[tuple[float, Shelved]] = []
        for path in _pack_folders(self.folder):
            number = self._numbers.setdefault(path, len(self._numbers) + 1)
            name = printable(str(path.relative_to(self.folder))) if path != self.folder else path.resolve().name
            self._packs[number] = Shelved(number, path, name)
            found.append((path.stat().st_mtime, self._packs[number]))
        found.sort(key=lambda pair: (-pair[0], pair[1].name))
        kept = [shelved for _, shelved in found[:MAX_PACKS]]
        return {
            "folder": printable(str(self.folder.resolve())),
            "left_out": len(found) - len(kept),
            "packs": [self._line(shelved) for shelved in kept],
        }

    def content(self, number: int) -> PackContent:
        return self.findings(number).content

    def findings(self, number: int) -> Findings:
        """Raises PackError for a number that is none, or a pack whose files are not as its manifest says."""
        path = self._shelved(number).path
        return self._read(path, _state(path))

    def name(self, number: int) -> str:
        return self._shelved(number).name

    def file(self, number: int, name: str) -> bytes:
        """A file as the pack holds it, unchecked: what comes of it is shown in a sandbox. Raises PackError."""
        return read_plain(self._shelved(number).path, name, _MAX_FILE_NBYTES)

    def _shelved(self, number: int) -> Shelved:
        if number not in self._packs:
            self.list()
        if number not in self._packs:
            raise PackError(f"there is no pack number {number}; open the list of packs again")
        return self._packs[number]

    def _line(self, shelved: Shelved) -> dict[str, Any]:
        line: dict[str, Any] = {"number": shelved.number, "name": shelved.name}
        try:
            content = self.content(shelved.number)
        except KvassayError as error:
            return line | {"error": str(error)}
        assert content.manifest is not None, "read_whole_pack reads it"
        return line | {
            "contract": content.contract.name,
            "contract_sha256": content.contract.sha256[:12],
            "model": model_name(content),
            "outcome": content.verdicts.outcome.value,
            "formats": len(content.verdicts.formats),
            "root": content.manifest.root[:12],
        }


def model_name(content: PackContent) -> str:
    return recorded_model_name(content.subject) or "not recorded"


def _read_with_findings(path: Path, _state: tuple[FileState, ...]) -> Findings:
    return find(read_whole_pack(path))


def _state(path: Path) -> tuple[FileState, ...]:
    """What the file system says of every file of a pack, which is other as soon as one is replaced or changed."""
    files = list_files(path)
    try:
        return tuple(_file_state(path, name) for name in (MANIFEST_NAME, *files.names, *files.odd))
    except OSError as error:
        raise PackError(f"{str(path)!r} changed while it was read; open the list of packs again") from error


def _file_state(path: Path, name: str) -> FileState:
    found = os.lstat(path / name)
    return FileState(name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _pack_folders(folder: Path) -> Iterator[Path]:
    """Folders that hold a pack's manifest, the folder itself included; links are not followed."""
    waiting = [(folder, 0)]
    seen = 0
    while waiting and seen < _MAX_FOLDERS:
        path, depth = waiting.pop(0)
        seen += 1
        if _is_pack(path):
            yield path
            continue
        if depth == MAX_DEPTH:
            continue
        try:
            below = sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
        except OSError:
            continue  # a folder that may not be read holds no pack that could be shown
        waiting += [(each, depth + 1) for each in below if not each.name.startswith(".")]


def _is_pack(path: Path) -> bool:
    if not (path / MANIFEST_NAME).is_file():
        return False
    try:
        return read_schema(path) == PACK_SCHEMA
    except KvassayError:
        return False
