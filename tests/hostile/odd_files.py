"""What can stand in the place of a file, for any reader."""

from __future__ import annotations

import io
import os
import pickle
import socket
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path


class _Touch:
    """A pickle that writes a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, ("pickle-was-loaded",)


@cache
def _zip_bomb() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../outside/planted", b"0" * (16 << 20))
    return sink.getvalue()


@cache
def _zlib_bomb() -> bytes:
    return zlib.compress(bytes(16 << 20))


def _tar() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../outside/planted")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    return sink.getvalue()


DATA: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "null bytes": lambda: bytes(1 << 16),
    "bytes that are no text": lambda: b"\xff\xfe" * 5000,
    "a zip bomb": _zip_bomb,
    "a zlib bomb": _zlib_bomb,
    "an archive": _tar,
    "a pickle": lambda: pickle.dumps(_Touch()),
    "nesting without end": lambda: b"[" * 1_000_000,
    "braces without end": lambda: b'{"a":' * 200_000,
    "millions of lists": lambda: b"[" + b"[]," * 1_100_000 + b"[]]",
    "a number beyond a double": lambda: b'{"schema": 1e400}',
    "NaN": lambda: b'{"schema": NaN}',
    "a million digits": lambda: b'{"schema": ' + b"9" * 1_000_000 + b"}",
    "a key twice": lambda: b'{"schema": "kvassay.pack/1", "schema": "kvassay.pack/2"}',
    "half a surrogate": lambda: b'{"schema": "\\ud800"}',
    "text that turns around": lambda: '{"schema": "\u202e\u2066gnp.evil"}'.encode(),
    "a list": lambda: b"[1, 2, 3]",
    "a page": lambda: b"<!doctype html><script>alert(1)</script>",
    "half a mark": lambda: b"\xef\xbb\xbf{",
}
"""Bytes that are no file of ours."""


def _link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "secret.txt")


def _device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name is at most 108 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _folder(path: Path, outside: Path) -> None:
    path.mkdir()


def _loop(path: Path, outside: Path) -> None:
    path.symlink_to(path.name)


def _sparse(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk


PLACES: dict[str, Callable[[Path, Path], None]] = {
    "a link to an endless device": _device,
    "a pipe": _pipe,
    "a socket": _socket,
    "a folder": _folder,
    "a link to itself": _loop,
    "a sparse terabyte": _sparse,
}
"""What no reader may open, wait for or read to its end. A link to a file is followed where the user names the file."""

LINKS: dict[str, Callable[[Path, Path], None]] = {"a link out of the folder": _link}
