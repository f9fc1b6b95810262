"""Opening a file that someone else named: a regular one, or an OSError.

A pipe has no end until its writer wants one, a device such as /dev/zero has none at all: either would hold a command
for good or fill its memory. So what is opened here is looked at first, and reading is bounded by the caller. What may
come through a pipe is read for as long as somebody writes (`read_once`).
"""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, links followed, for reading; the caller closes it.

    Raises OSError, with a sentence as its `strerror`, for a folder, pipe, socket or device and for an impossible name,
    and the system's own for what is missing or forbidden.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer. It changes nothing for a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a null byte
        raise OSError(errno.EINVAL, f"no possible file name ({error})", str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "no regular file but a pipe, socket or device", str(path))


def read_regular(path: Path, max_nbytes: int) -> bytes:
    """All bytes of a regular file of at most `max_nbytes`; raises OSError as `open_regular`, and for a longer one."""
    with open_regular(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        # Not `max_nbytes`: a buffer of that size would be made first, however small the file is.
        data = file.read(nbytes + 1) if nbytes <= max_nbytes else b""
    if nbytes > max_nbytes:
        raise OSError(errno.EFBIG, f"{nbytes:,} bytes; at most {max_nbytes:,} are read", str(path))
    if len(data) > nbytes:
        raise OSError(errno.EIO, "it grew while it was read", str(path))
    return data


def read_once(path: Path, max_nbytes: int, wait_s: float = 5.0) -> bytes:
    """Up to `max_nbytes` bytes of a file, device or pipe that a user names, such as `/dev/stdin` or `<(command)`.

    Raises OSError, with a sentence as its `strerror`, for a folder, socket or impossible name, and for a pipe to which
    nobody writes for `wait_s`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a null byte
        raise OSError(errno.EINVAL, f"no possible file name ({error})", str(path)) from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        if not is_pipe:
            os.set_blocking(descriptor, True)
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        chunks: list[bytes] = []
        left = max_nbytes
        while left:
            if is_pipe and not waiting.poll(1000 * wait_s):
                raise OSError(errno.ETIMEDOUT, f"a pipe to which nobody wrote for {wait_s:g} s", str(path))
            chunk = file.read(left)
            if not chunk:
                break
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def require_regular_files(folder: Path) -> None:
    """Raise OSError that names the first entry of a folder that is neither a file nor a folder, links followed.

    For readers of other libraries, which would open a pipe and wait.
    """
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "no regular file but a pipe, socket or device", str(path))
