"""PrefixFolder: one file a block, whose name is its key. The folder itself is the index, so no index can lie.

A file gets its name by one rename, after its bytes have reached the disk; until then its name is hidden and no lookup
asks for it. A process that is killed at any point leaves whole files and at most one hidden rest, which the next to
make room removes. Several processes may use a folder: a file that another one removed is a miss.

The time of the last use is the file's modification time, which each lookup sets: access times are switched off on many
systems.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvassay.errors import PrefixStoreError

_WRITE_NBYTES = 1 << 20
_WHOLE = re.compile(r"[0-9a-f]{64}\.(full|window)\.safetensors")
_PARTIAL = re.compile(r"\.[0-9a-f]{64}\.(full|window)\.safetensors\.[0-9a-f]{16}\.partial")
_ABANDONED_SECONDS = 60.0
"""A hidden file that is younger may be about to be locked by its writer."""


class _Found(NamedTuple):
    name: str
    used_ns: int
    nbytes: int


class PrefixFolder:
    """Files of blocks in `folder`, which is made if it is missing. Only files with names of its own are touched."""

    def __init__(self, folder: Path, limit_nbytes: int | None = None) -> None:
        self.folder = folder
        self.limit_nbytes = limit_nbytes
        try:
            # Keys and values tell the text: others on the machine must not read them.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PrefixStoreError(f"{str(folder)!r} cannot be a folder of prefixes: {error.strerror}") from error

    def holds(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole files that are there now."""
        return sum(found.nbytes for found in self._scan()[0])

    def read(self, name: str, nbytes: int) -> bytes | None:
        """The file's bytes, at most one more than `nbytes`; None where there is no such file."""
        try:
            handle = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PrefixStoreError(f"{name} cannot be opened: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise PrefixStoreError(f"{name} is not a plain file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(nbytes + 1)
        except OSError as error:
            raise PrefixStoreError(f"{name} cannot be read: {error.strerror}") from error
        finally:
            os.close(handle)

    def write(self, name: str, content: bytes) -> None:
        """Put a whole file under its name, or nothing; raises PrefixStoreError. `sync` makes the name durable."""
        partial = self.folder / f".{name}.{secrets.token_hex(8)}.partial"
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # The lock ends with the process, however that ends: who finds a hidden file unlocked may remove it.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_all(handle, content)
                os.fsync(handle)
                os.rename(partial, self.folder / name)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial)
                raise
            finally:
                os.close(handle)
        except OSError as error:
            raise PrefixStoreError(
                f"{str(self.folder / name)!r} cannot be written: {error.strerror}; free some space, or give the store "
                "another folder"
            ) from error

    def touch(self, names: Iterable[str]) -> None:
        """Note a use of these files now, the first one being the last used. A folder that is read-only notes none."""
        now = time.time_ns()
        for index, name in enumerate(names):
            with suppress(OSError):
                os.utime(self.folder / name, ns=(now - index, now - index))

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self.folder / name)

    def make_room(self, nbytes: int = 0) -> bool:
        """Remove dead writers' rests, then the longest unused files until `nbytes` more fit; False if they never do."""
        if self.limit_nbytes is None:
            return True
        whole, partial = self._scan()
        for rest in partial:
            self._remove_abandoned(rest)
        total = sum(found.nbytes for found in whole)
        for found in sorted(whole, key=lambda one: (one.used_ns, one.name)):
            if total + nbytes <= self.limit_nbytes:
                break
            self.remove(found.name)
            total -= found.nbytes
        return nbytes <= self.limit_nbytes

    def remove_abandoned(self) -> None:
        """Remove rests of writers that were killed."""
        for rest in self._scan()[1]:
            self._remove_abandoned(rest)

    def _remove_abandoned(self, rest: _Found) -> None:
        if time.time_ns() - rest.used_ns < _ABANDONED_SECONDS * 1e9:
            return
        with suppress(OSError):
            handle = os.open(self.folder / rest.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(self.folder / rest.name)
            finally:
                os.close(handle)

    def _scan(self) -> tuple[list[_Found], list[_Found]]:
        """Whole files and hidden ones."""
        whole: list[_Found] = []
        partial: list[_Found] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                kind = whole if _WHOLE.fullmatch(entry.name) else partial if _PARTIAL.fullmatch(entry.name) else None
                if kind is None:
                    continue
                with suppress(FileNotFoundError):  # another process removed it meanwhile
                    status = entry.stat(follow_symlinks=False)
                    kind.append(_Found(entry.name, status.st_mtime_ns, status.st_size))
        return whole, partial

    def sync(self) -> None:
        """Make the names of what was written outlast a loss of power; raises PrefixStoreError."""
        try:
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise PrefixStoreError(f"{str(self.folder)!r} cannot be synchronised: {error.strerror}") from error


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left[:_WRITE_NBYTES]) :]
