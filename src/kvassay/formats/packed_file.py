"""The packed-KV file: a safetensors file whose one metadata entry describes every array (docs/spec/packed-kv.md).

The reader trusts nothing: what the header declares is compared with what the format implies before any array is
allocated, and every array's bytes with their hash before any is handed out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch
from pydantic import ValidationError
from torch import Tensor

from kvassay.core.digest import canonical_json, sha256_bytes
from kvassay.core.kv_format import LAYOUT_VERSION, KVFormat
from kvassay.core.layout import rotation_block
from kvassay.core.packed_layout import (
    SCHEMA,
    ArrayHeader,
    DeclaredArray,
    PackedHeader,
    PackedSide,
    SideHeader,
    canonical_format,
    header_digest,
    packed_sides,
)
from kvassay.core.regular_file import open_regular
from kvassay.errors import CalibrationError, ContainerError, KvassayError, PackedKVError
from kvassay.formats.calibration import require_calibration
from kvassay.formats.container import (
    CONTAINER_DTYPES,
    Entry,
    StoredArray,
    container_header,
    in_file_order,
    one_line,
    read_container,
    replacing_file,
    require_length,
    require_little_endian,
    require_no_gap,
    strict_json,
)
from kvassay.formats.packed_kv import PackedKV

METADATA_KEY = "kvassay.packed_kv"
MAX_HEADER_NBYTES = 1 << 20
"""A header of one layer takes about 4 KiB for each head group, and a group is all heads that are stored alike."""


def packed_header(packed: PackedKV) -> PackedHeader:
    """The header of packed arrays, hashes included."""
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "layout_version": packed.kv_format.layout_version,
        "format": canonical_format(packed.kv_format),
        "format_digest": packed.kv_format.digest,
        "layer": packed.layer,
        "geometry": packed.geometry.model_dump(mode="json"),
        "sides": {
            name: side.model_dump(mode="json")
            for name, side in _side_headers(packed.sides, packed.scale_sources, packed.clipped_values).items()
        },
        "arrays": {
            declared.name: ArrayHeader(
                owner=declared.owner,
                dtype=declared.dtype,
                shape=declared.shape,
                sha256=sha256_bytes(array_bytes(packed.arrays[declared.name])),
            ).model_dump(mode="json")
            for side in packed.sides
            for declared in side.arrays
        },
    }
    return PackedHeader.model_validate({**fields, "digest": header_digest(fields)})


def array_bytes(array: Tensor) -> bytes:
    """Little-endian bytes of an array in row-major order."""
    return array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def save_packed(packed: PackedKV, path: Path) -> None:
    """Write the file beside `path` and put it in place by one rename."""
    header = canonical_json(packed_header(packed).to_json()).decode()
    if len(header) * 2 > MAX_HEADER_NBYTES:
        raise PackedKVError(
            f"{path}: a header of {len(header)} bytes is more than a reader takes; override fewer heads"
        )
    declared = [array for side in packed.sides for array in side.arrays]
    stored = in_file_order([StoredArray(array.name, array.dtype, array.shape) for array in declared])
    try:
        with replacing_file(path) as file:
            file.write(container_header(stored, METADATA_KEY, header))
            for array in stored:
                file.write(array_bytes(packed.arrays[array.name]))
    except ContainerError as error:
        raise PackedKVError(f"{path}: {error}") from error


def read_packed(path: Path) -> PackedKV:
    """Read and check a whole file; raises PackedKVError that names the file and the fault."""
    try:
        require_little_endian()
        with open_regular(path) as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except (PackedKVError, ContainerError) as error:
        raise PackedKVError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise PackedKVError(f"{path}: cannot be read: {one_line(error)}") from error


def _read(file: BinaryIO, file_nbytes: int) -> PackedKV:
    entries, text, data_begin = read_container(file, file_nbytes, METADATA_KEY, MAX_HEADER_NBYTES, "packed-KV file")
    header, kv_format = _header(text)
    try:
        sides = packed_sides(kv_format, header.layer, header.geometry)
        expected_sides = _side_headers(
            sides,
            {name: side.scale_source for name, side in header.sides.items()},
            {name: side.clipped_values for name, side in header.sides.items()},
        )
    except (KvassayError, KeyError) as error:
        raise PackedKVError(f"the header's format and geometry do not fit: {one_line(error)}") from error
    if expected_sides != header.sides:
        wrong = sorted(
            name
            for name in expected_sides.keys() | header.sides.keys()
            if expected_sides.get(name) != header.sides.get(name)
        )
        raise PackedKVError(f"sides {', '.join(wrong)} of the header do not follow from its format and geometry")
    declared = [array for side in sides for array in side.arrays]
    _check_arrays(declared, header, entries, file_nbytes - data_begin)
    arrays = {array.name: _array(file, array, header, data_begin + entries[array.name].begin) for array in declared}
    for side in sides:
        spec, source = side.plan.spec, header.sides[side.name].scale_source
        static = {
            each.removeprefix(side.static_prefix): arrays[each]
            for each in arrays
            if each.startswith(side.static_prefix)
        }
        try:
            require_calibration(spec, len(side.heads), side.dim, static, source, side.name)
        except CalibrationError as error:
            raise PackedKVError(str(error)) from error
    return PackedKV(
        kv_format,
        header.layer,
        header.geometry,
        MappingProxyType(arrays),
        MappingProxyType({name: side.scale_source for name, side in header.sides.items()}),
        MappingProxyType({name: side.clipped_values for name, side in header.sides.items()}),
    )


def _header(text: str) -> tuple[PackedHeader, KVFormat]:
    """Our header, checked for everything that needs no array."""
    value = strict_json(text.encode("utf-8", "surrogatepass"), "the packed-KV header")
    if not isinstance(value, dict):
        raise PackedKVError("the packed-KV header is no object")
    if value.get("schema") != SCHEMA:
        raise PackedKVError(
            f"schema is {str(value.get('schema'))[:100]!r}, expected {SCHEMA!r}; read it with the version that wrote it"
        )
    if value.get("layout_version") != LAYOUT_VERSION:
        raise PackedKVError(
            f"layout_version is {str(value.get('layout_version'))[:100]}, expected {LAYOUT_VERSION}: its bytes decode "
            "to other numbers here; read it with the version that wrote it"
        )
    try:
        header = PackedHeader.model_validate(value)
        if canonical_json(header.to_json()) != text.encode():
            raise PackedKVError("the packed-KV header is not the canonical JSON of its fields")
        kv_format = KVFormat.model_validate(header.format)
        same = canonical_json(canonical_format(kv_format)) == canonical_json(header.format)  # 0 is not false in JSON
        if not same or kv_format.layout_version != header.layout_version:
            raise PackedKVError("the header's format is not in canonical form")
        _ = kv_format.name  # the grammar checks methods, bits and options
    except ValidationError as error:
        first = error.errors()[0]
        raise PackedKVError(f"header field {'.'.join(map(str, first['loc']))[:200]}: {first['msg']}") from error
    except (PackedKVError, ContainerError):
        raise
    except (KvassayError, ValueError, KeyError) as error:
        raise PackedKVError(f"the header's format cannot be read: {one_line(error)}") from error
    if kv_format.digest != header.format_digest:
        raise PackedKVError(
            f"format_digest is {header.format_digest[:12]}…, the format's own digest is {kv_format.digest[:12]}…"
        )
    if header_digest(value) != header.digest:
        raise PackedKVError(f"digest is {header.digest[:12]}…, the header's own digest is {header_digest(value)[:12]}…")
    return header, kv_format


def _side_headers(
    sides: Iterable[PackedSide], scale_sources: Mapping[str, str], clipped_values: Mapping[str, int]
) -> dict[str, SideHeader]:
    return {
        side.name: SideHeader(
            heads=side.heads,
            spec=side.plan.spec,
            exact_dtype=side.exact_dtype,
            sink_tokens=side.sink_tokens,
            coded_tokens=side.coded_tokens,
            tail_tokens=side.tail_tokens,
            tokens_per_block=side.plan.spec.tokens_per_block,
            hadamard_block=rotation_block(side.plan.spec, side.dim),
            scale_source=scale_sources[side.name],
            clipped_values=clipped_values[side.name],
        )
        for side in sides
    }


def _check_arrays(
    declared: list[DeclaredArray], header: PackedHeader, entries: dict[str, Entry], data_nbytes: int
) -> None:
    """Names, types, shapes and places of all arrays, before one is allocated."""
    expected = {array.name for array in declared}
    for what, found in (("the header", set(header.arrays)), ("the container", set(entries))):
        if missing := sorted(expected - found):
            raise PackedKVError(f"{what} lacks {', '.join(missing)}")
        if extra := sorted(found - expected):
            raise PackedKVError(f"{what} has {', '.join(extra)[:300]}, which the format does not store")
    end = require_no_gap(entries)
    for array in declared:
        own, entry = header.arrays[array.name], entries[array.name]
        for what, dtype, shape, expected_dtype in (
            ("header", own.dtype, own.shape, array.dtype),
            ("container", entry.dtype, entry.shape, CONTAINER_DTYPES[array.dtype]),
        ):
            if (dtype, shape) != (expected_dtype, array.shape):
                raise PackedKVError(
                    f"array {array.name} is {dtype[:40]} of shape {list(shape)} in the {what}; the format stores "
                    f"{expected_dtype} of shape {list(array.shape)}"
                )
        if own.owner != array.owner:
            raise PackedKVError(f"array {array.name} is owned by {own.owner.value}, expected {array.owner.value}")
        if entry.end - entry.begin != array.nbytes:
            raise PackedKVError(f"array {array.name} takes {entry.end - entry.begin} bytes, its shape {array.nbytes}")
    require_length(data_nbytes, end)


def _array(file: BinaryIO, array: DeclaredArray, header: PackedHeader, begin: int) -> Tensor:
    data = bytearray(array.nbytes)
    file.seek(begin)
    if file.readinto(data) != array.nbytes:  # pyright: ignore[reportAttributeAccessIssue]  (a file opened for reading)
        raise PackedKVError(f"truncated within array {array.name}")
    if hashlib.sha256(data).hexdigest() != header.arrays[array.name].sha256:
        raise PackedKVError(f"array {array.name}: its bytes do not have the SHA-256 that the header gives")
    tensor = torch.frombuffer(data, dtype=getattr(torch, array.dtype)).reshape(array.shape)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor.to(torch.float32)).all()):
        raise PackedKVError(f"array {array.name} holds NaN or infinity; every stored float is finite")
    return tensor
