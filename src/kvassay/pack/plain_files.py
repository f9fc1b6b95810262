"""Walking and reading a folder that someone else may have prepared.

Symbolic links, devices and pipes are never followed or opened: a link could lead outside the folder, a pipe
could block.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvassay.errors import PackError
from kvassay.pack.manifest import MANIFEST_NAME, MAX_FILES, OWN_NAMES, SIGNATURES_NAME, check_file_name

MAX_DEPTH = 8


class FolderFiles(NamedTuple):
    """Relative names, sorted. `names` are regular files but the manifest and its signatures; `odd` are links, devices
    and pipes."""

    names: tuple[str, ...]
    odd: tuple[str, ...]
    has_manifest: bool
    has_signatures: bool
    """Whether a regular file has the name of the signatures."""


def list_files(folder: Path) -> FolderFiles:
    """All files below `folder`; raises PackError when it is no folder, or holds too many files or levels."""
    if folder.is_symlink() or not folder.is_dir():
        fault = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise PackError(f"{str(folder)!r} {fault}; expected a result folder with a {MANIFEST_NAME}")
    names: list[str] = []
    odd: list[str] = []
    pending = [("", 0)]
    while pending:
        prefix, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise PackError(f"{str(folder)!r} is nested more than {MAX_DEPTH} levels deep; no result folder is")
        try:
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((name + "/", depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        names.append(name)
                    else:
                        odd.append(name)
                    if len(names) + len(odd) + len(pending) > MAX_FILES + 1:
                        raise PackError(f"{str(folder)!r} holds more than {MAX_FILES} files; no result folder does")
        except OSError as error:
            raise PackError(f"folder {str(folder / prefix)!r} cannot be listed: {error.strerror}") from error
    listed = sorted(name for name in names if name not in OWN_NAMES)
    return FolderFiles(tuple(listed), tuple(sorted(odd)), MANIFEST_NAME in names, SIGNATURES_NAME in names)


def open_plain(folder: Path, name: str) -> BinaryIO:
    """Open a regular file below `folder` for reading; the caller closes it.

    Raises PackError when it is missing, is reached through a link, or is not a regular file.
    """
    if name not in OWN_NAMES:
        check_file_name(name)
    path = folder
    for part in name.split("/")[:-1]:
        path = path / part
        if path.is_symlink():
            raise PackError(f"{name}: reached through a symbolic link; a pack holds regular files only")
    path = folder / name
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise PackError(f"{name}: missing in {str(folder)!r}") from error
    except OSError as error:
        what = "a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise PackError(f"{name}: {what}; a pack holds regular files only") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # `fdopen` would refuse a folder by an error of its own
        raise PackError(f"{name}: not a regular file; a pack holds regular files only")
    return os.fdopen(descriptor, "rb")


def read_plain(folder: Path, name: str, max_nbytes: int) -> bytes:
    """The bytes of a regular file below `folder` of at most `max_nbytes`; raises PackError otherwise."""
    with open_plain(folder, name) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > max_nbytes:
            raise PackError(f"{name}: {nbytes} bytes, at most {max_nbytes} are expected")
        try:
            # Not `max_nbytes`: a buffer of that size would be made first, however small the file is.
            data = file.read(nbytes + 1)
        except OSError as error:
            raise PackError(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > nbytes:
        raise PackError(f"{name}: grew beyond {nbytes} bytes while it was read")
    return data
