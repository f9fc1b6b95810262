"""The container of kvassay's array files: safetensors with one metadata entry, written atomically, read with distrust.

docs/spec/packed-kv.md ("Container") is this module in prose. A file is written here and not by the safetensors package,
so that equal arrays give equal files under every release of it; that package reads them.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kvassay.core.bounded_json import json_size_fault
from kvassay.core.spec import DTYPE_NBYTES
from kvassay.errors import ContainerError

CONTAINER_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int32": "I32",
}
"""safetensors' names of the dtypes that kvassay stores. `fn` and `fnuz` bytes mean different numbers."""

_MAX_DIMENSIONS = 16
"""Of an array in a file; ours have at most seven."""


class StoredArray(NamedTuple):
    """An array to be written, or that a reader expects."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def element_nbytes(self) -> int:
        return 4 if self.dtype == "int32" else DTYPE_NBYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        elements = 1
        for size in self.shape:
            elements *= size
        return elements * self.element_nbytes


class Entry(NamedTuple):
    """An array as the container describes it; `begin` counts from the end of the container's header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Container(NamedTuple):
    """What the header of a container says."""

    entries: dict[str, Entry]
    metadata: str
    """Text of our metadata entry."""
    data_begin: int
    """Byte of the file at which the data begins."""


def in_file_order(arrays: Sequence[StoredArray]) -> list[StoredArray]:
    """Wide elements come first; the data begins at a multiple of 8 bytes, so every array is aligned for its type."""
    return sorted(arrays, key=lambda array: -array.element_nbytes)


def container_header(arrays: Sequence[StoredArray], metadata_key: str, metadata: str) -> bytes:
    """The first bytes of a file whose data are `arrays`, in the order given."""
    table: dict[str, object] = {"__metadata__": {metadata_key: metadata}}
    place = 0
    for array in arrays:
        table[array.name] = {
            "dtype": CONTAINER_DTYPES[array.dtype],
            "shape": array.shape,
            "data_offsets": (place, place + array.nbytes),
        }
        place += array.nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def replacing_file(path: Path) -> Generator[BinaryIO]:
    """A file to write that takes the place of `path` by one rename when the block ends, and vanishes on an error.

    A link stays, and the file that it names is replaced. Raises ContainerError where it cannot be written; what stood
    at `path` is whole then. Devices, pipes and folders are refused: a rename would put a file in the place of them.
    """
    require_little_endian()
    try:
        path = path.resolve()
        if not path.name:
            raise ContainerError("cannot be written: it is a folder; give a file name")
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise ContainerError(f"cannot be written: it is {what}, which a file would replace; give a file name")
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a null byte, a loop of links
        raise ContainerError(f"cannot be written: {one_line(error)}") from error
    partial = path.with_name(f".{path.name[:60]}.partial-{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        with suppress(OSError):  # the file is whole and in place; some file systems cannot sync a folder
            _sync_folder(path.parent)
    except OSError as error:
        raise ContainerError(f"cannot be written: {one_line(error)}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def read_container(file: BinaryIO, file_nbytes: int, metadata_key: str, max_header_nbytes: int, kind: str) -> Container:
    """Read the header of a `kind` of file, such as "packed-KV file"; raises ContainerError."""
    prefix = file.read(8)
    header_nbytes = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or 8 + header_nbytes > file_nbytes:
        raise ContainerError(f"truncated: {file_nbytes} bytes do not hold a header of {header_nbytes} bytes")
    if header_nbytes > max_header_nbytes:
        raise ContainerError(f"a header of {header_nbytes} bytes; at most {max_header_nbytes} are read")
    value = strict_json(file.read(header_nbytes), "the safetensors header")
    if not isinstance(value, dict):
        raise ContainerError("the safetensors header is no object; is this a safetensors file?")
    metadata = value.pop("__metadata__", None)
    text = metadata.get(metadata_key) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ContainerError(f"no metadata entry {metadata_key!r}; this is no {kind}")
    return Container({name: _entry(name, fields) for name, fields in value.items()}, text, 8 + header_nbytes)


def require_no_gap(entries: dict[str, Entry]) -> int:
    """Raise ContainerError unless the arrays follow each other from byte 0 on; returns where the last one ends."""
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != place or entry.end < place:
            raise ContainerError(
                f"array {name[:100]} begins at byte {entry.begin} of the data, expected {place}: gap or overlap"
            )
        place = entry.end
    return place


def require_length(data_nbytes: int, declared: int) -> None:
    """Raise ContainerError unless the file ends with its last array."""
    if declared != data_nbytes:
        what = "truncated" if data_nbytes < declared else "bytes after the last array"
        raise ContainerError(f"{what}: {data_nbytes} bytes of arrays, {declared} are declared")


def require_little_endian() -> None:
    if sys.byteorder != "little":
        raise ContainerError("array files are little-endian and this machine is not; use a little-endian machine")


def strict_json(data: bytes, what: str) -> Any:
    """A JSON value in which no key stands twice in one object; raises ContainerError."""
    if fault := json_size_fault(data):
        raise ContainerError(f"{what} holds {fault}")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ContainerError(f"{what} is not valid JSON: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The message of an error on one line, shortened."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _entry(name: str, fields: Any) -> Entry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **rest} if (
            not rest
            and all(type(number) is int and number >= 0 for number in (*shape, begin, end))
            and len(shape) <= _MAX_DIMENSIONS
        ):
            return Entry(dtype, tuple(shape), begin, end)
    raise ContainerError(f"array {name[:100]!r}: dtype, shape and data_offsets of whole numbers are expected")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
