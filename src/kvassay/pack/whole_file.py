"""Writing a single file: whole in its place, or not there at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from kvassay.errors import PackError
from kvassay.pack.outside import refuse_inside_result
from kvassay.pack.signals import signals_held


def write_whole_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a fresh file by way of a hidden one beside it, so that a full disk or an interrupt leaves nothing.

    `mode` is what the file may at most be opened for; the process's umask takes from it.
    Raises PackError where `path` exists in any form or cannot be written.
    """
    out = Path(os.path.abspath(path))
    shown = repr(str(path))
    partial = out.with_name(f".kvassay-{secrets.token_hex(8)}.partial")
    refuse_existing(path)
    try:
        _write_synced(partial, data, mode)
        _put_in_place(partial, out)
    except FileExistsError as error:
        raise _exists(shown) from error
    except OSError as error:
        raise PackError(f"{shown} cannot be written: {error.strerror}") from error
    finally:
        with signals_held(), suppress(OSError):
            partial.unlink()


def replace_whole_file(path: Path, data: bytes) -> None:
    """Write a file in place of what is at `path`, a link itself and not what it names; raises PackError."""
    out = Path(os.path.abspath(path))
    partial = out.with_name(f".kvassay-{secrets.token_hex(8)}.partial")
    try:
        _write_synced(partial, data, 0o666)
        os.replace(partial, out)
    except OSError as error:
        raise PackError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    finally:
        with signals_held(), suppress(OSError):
            partial.unlink()


def refuse_existing(path: Path) -> None:
    """Raise PackError where `path` exists in any form, cannot, or must not: before work whose result it is for."""
    shown = repr(str(path))
    try:
        # Asked of the system, which knows how long a name may be here.
        os.lstat(Path(os.path.abspath(path)))
    except FileNotFoundError:
        refuse_inside_result(path)
        return
    except OSError as error:
        raise PackError(f"{shown} cannot be written: {error.strerror}") from error
    raise _exists(shown)


def _exists(shown: str) -> PackError:
    return PackError(f"{shown} exists; give a path that does not exist yet")


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(partial: Path, out: Path) -> None:
    try:
        os.link(partial, out)  # unlike a rename, it never replaces a file that came into being meanwhile
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(out):
            raise FileExistsError from None
        os.rename(partial, out)
