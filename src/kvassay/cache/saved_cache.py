"""Saving a whole cache to one file, and loading it: the same bits, or an error that names the file.

docs/spec/saved-cache.md says what is in it. A file is read into layers of its own. Only when the last hash has been
compared do they take the place of what a cache held, so a load that fails changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import torch
from pydantic import ValidationError

from kvassay.cache.cache_identity import config_digest, require_same_format, require_same_geometry, transform_digest
from kvassay.cache.restored_state import LayerPlan
from kvassay.cache.saved_state import layer_to_save, static_digests
from kvassay.core.digest import canonical_json
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import LAYOUT_VERSION, KVFormat
from kvassay.core.packed_layout import canonical_format, header_digest
from kvassay.core.paging import PAGE_ORDER
from kvassay.core.regular_file import open_regular
from kvassay.core.saved_header import SCHEMA, SavedHeader
from kvassay.errors import ContainerError, KvassayError, SavedCacheError
from kvassay.formats.container import (
    CONTAINER_DTYPES,
    Container,
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

if TYPE_CHECKING:
    from kvassay.cache.quantized_cache import QuantizedCache

METADATA_KEY = "kvassay.saved_cache"
MAX_HEADER_NBYTES = 32 << 20
"""A store takes about 1 KiB, and a cache has two a layer for each head group and each padding of its rows."""

_NO_DIGEST = "0" * 64


class OpenFile(NamedTuple):
    """A saved cache whose header was read and checked against itself."""

    file: BinaryIO
    container: Container
    header: SavedHeader
    kv_format: KVFormat
    geometry: CacheGeometry
    data_nbytes: int


def save_cache(cache: QuantizedCache, path: Path, revision: str | None) -> None:
    """Write the file beside `path` and put it in place by one rename."""
    with _naming(path):
        layers = [layer_to_save(layer, index) for index, layer in enumerate(cache.quantized_layers)]
        arrays = {array.stored.name: array for layer in layers for array in layer.arrays}
        stored = in_file_order([array.stored for array in arrays.values()])
        fields: dict[str, Any] = {
            "schema": SCHEMA,
            "layout_version": cache.kv_format.layout_version,
            "page_order": PAGE_ORDER,
            "format": canonical_format(cache.kv_format),
            "format_digest": cache.kv_format.digest,
            "geometry": cache.geometry.model_dump(mode="json"),
            "config_digest": config_digest(cache.config),
            "revision": revision,
            "on_clip": cache.on_clip,
            "left_padding": _listed(cache.quantized_layers[0].state.left_padding),
            "layers": [layer.header.model_dump(mode="json") for layer in layers],
            "arrays": dict.fromkeys(arrays, _NO_DIGEST),
        }
        # Digests have one length, so the header's place is known before they are, and arrays are made only once.
        first = _header_bytes(fields, stored)
        if len(first) > MAX_HEADER_NBYTES:
            raise SavedCacheError(
                f"a header of {len(first)} bytes, at most {MAX_HEADER_NBYTES} are read; save fewer rows in one cache"
            )
        with replacing_file(path) as file:
            file.write(bytes(len(first)))
            for array in stored:
                digest = hashlib.sha256()
                for piece in arrays[array.name].pieces():
                    digest.update(piece)
                    file.write(piece)
                fields["arrays"][array.name] = digest.hexdigest()
            header = _header_bytes(fields, stored)
            assert len(header) == len(first), "digests have one length"
            file.seek(0)
            file.write(header)


@contextmanager
def opened(path: Path) -> Generator[OpenFile]:
    """A file to load from. Errors, also those of the block, are SavedCacheErrors that name the file."""
    with _naming(path):
        require_little_endian()
        with open_regular(path) as file:
            file_nbytes = os.fstat(file.fileno()).st_size
            container = read_container(file, file_nbytes, METADATA_KEY, MAX_HEADER_NBYTES, "saved cache")
            header, kv_format, geometry = _header(container.metadata)
            yield OpenFile(file, container, header, kv_format, geometry, file_nbytes - container.data_begin)


def require_loadable(saved: OpenFile, config: Any, geometry: CacheGeometry, revision: str | None) -> None:
    """Raise SavedCacheError unless the file is of this model, and of this revision if one is given."""
    require_same_geometry(saved.geometry, geometry)
    if saved.header.config_digest != config_digest(config):
        raise SavedCacheError(
            f"the file is of a model whose config has digest {saved.header.config_digest[:12]}…, this one's is "
            f"{config_digest(config)[:12]}…: equal shapes, other arithmetic; load it for the model that it was saved "
            "from"
        )
    if revision is not None and saved.header.revision != revision:
        raise SavedCacheError(
            f"the file is of revision {_shown(saved.header.revision)}, and {_shown(revision)} was asked for; "
            "load it for the weights that it was saved from"
        )


def restore(cache: QuantizedCache, saved: OpenFile, device: torch.device) -> None:
    """Give `cache` what the file holds, all of it or, on an error, nothing."""
    require_same_format(saved.kv_format, cache.kv_format)
    header = saved.header
    if len(header.layers) != len(cache.quantized_layers):
        raise SavedCacheError(
            f"the header lists {len(header.layers)} layers, its geometry {len(cache.quantized_layers)}: it was changed"
        )
    for index, (layer, kept) in enumerate(zip(cache.quantized_layers, header.layers, strict=True)):
        if static_digests(layer) != kept.static:
            raise SavedCacheError(
                f"the static scales or means of layer {index} are not those that its codes were made with; pass the "
                "calibration that the cache was saved with"
            )
        if transform_digest(layer.key_transform, layer.geometry) != kept.key_transform:
            raise SavedCacheError(
                f"the key bias or rotary embedding of layer {index} is not the one that was taken from its keys; load "
                "it for the weights that it was saved from"
            )
    plans = [
        LayerPlan(layer, kept, index)
        for index, (layer, kept) in enumerate(zip(cache.quantized_layers, header.layers, strict=True))
    ]
    if len(batches := {plan.num_rows for plan in plans if plan.num_rows}) > 1:
        raise SavedCacheError(f"layers of the file have {sorted(batches)} rows; a batch has one number")
    if len(columns := {kept.columns for kept in header.layers if kept.columns}) > 1:
        raise SavedCacheError(f"layers of the file hold {sorted(columns)} columns; a cache has one number")
    source = _Source(saved, [array for plan in plans for array in plan.arrays])
    padding = None if header.left_padding is None else tuple(header.left_padding)
    states = [plan.read(source, device, padding) for plan in plans]
    for layer, state in zip(cache.quantized_layers, states, strict=True):
        layer.state, layer.shows_past = state, state.record_past


class _Source:
    """The arrays of an open file: types, shapes and places are compared at once, hashes when an array is read."""

    def __init__(self, saved: OpenFile, expected: list[StoredArray]) -> None:
        self._saved = saved
        self._sizes = {array.name: array.nbytes for array in expected}
        entries = saved.container.entries
        for what, found in (("header", set(saved.header.arrays)), ("container", set(entries))):
            if missing := sorted(self._sizes.keys() - found):
                raise SavedCacheError(f"the {what} lacks array {', '.join(missing)[:300]}")
            if extra := sorted(found - self._sizes.keys()):
                raise SavedCacheError(f"the {what} has array {', '.join(extra)[:300]}, which no store names")
        for array in expected:
            entry = entries[array.name]
            if (entry.dtype, entry.shape) != (CONTAINER_DTYPES[array.dtype], array.shape):
                raise SavedCacheError(
                    f"array {array.name} is {entry.dtype[:40]} of shape {list(entry.shape)[:8]}; expected "
                    f"{CONTAINER_DTYPES[array.dtype]} of shape {list(array.shape)}"
                )
            if entry.end - entry.begin != array.nbytes:
                raise SavedCacheError(
                    f"array {array.name} takes {entry.end - entry.begin} bytes, its shape {array.nbytes}"
                )
        require_length(saved.data_nbytes, require_no_gap(entries))

    def whole(self, name: str) -> bytes:
        (data,) = self.pieces(name, iter((self._sizes[name],)))
        return data

    def pieces(self, name: str, nbytes: Iterator[int]) -> Iterator[bytes]:
        """Pieces of the sizes asked for; the last comes only if the whole has its hash."""
        self._saved.file.seek(self._saved.container.data_begin + self._saved.container.entries[name].begin)
        digest, left = hashlib.sha256(), self._sizes[name]
        for size in nbytes:
            data = self._saved.file.read(size)
            if len(data) != size:
                raise SavedCacheError(f"truncated within array {name}")
            digest.update(data)
            left -= size
            if not left and digest.hexdigest() != self._saved.header.arrays[name]:
                raise SavedCacheError(f"array {name}: its bytes do not have the SHA-256 that the header gives")
            yield data


def _header(text: str) -> tuple[SavedHeader, KVFormat, CacheGeometry]:
    """The header, checked for everything that needs neither arrays nor a model."""
    value = strict_json(text.encode("utf-8", "surrogatepass"), "the header of the saved cache")
    if not isinstance(value, dict):
        raise SavedCacheError("the header of the saved cache is no object")
    for field, expected in (("schema", SCHEMA), ("layout_version", LAYOUT_VERSION), ("page_order", PAGE_ORDER)):
        if (found := value.get(field)) != expected or type(found) is not type(expected):
            raise SavedCacheError(
                f"{field} is {str(found)[:100]!r}, expected {expected!r}: its bytes mean other numbers here; read it "
                "with the version that wrote it"
            )
    try:
        if canonical_json(value) != text.encode():
            raise SavedCacheError("the header is not the canonical JSON of its fields")
        header = SavedHeader.model_validate(value)
        if header.to_json() != value:
            raise SavedCacheError("the header is not what its fields say")
        if header_digest(value) != header.digest:
            raise SavedCacheError(
                f"digest is {header.digest[:12]}…, the header's own is {header_digest(value)[:12]}…: it was changed"
            )
        kv_format = KVFormat.model_validate(header.format)
        geometry = CacheGeometry.model_validate(header.geometry)
        _ = kv_format.name  # the grammar checks methods, bits and options
    except ValidationError as error:
        raise SavedCacheError(_field_error(error)) from error
    # As JSON, since 0 is not false there.
    if canonical_json(canonical_format(kv_format)) != canonical_json(header.format):
        raise SavedCacheError("the header's format is not in canonical form")
    if canonical_json(geometry.model_dump(mode="json")) != canonical_json(header.geometry):
        raise SavedCacheError("the header's geometry is not in canonical form")
    if kv_format.digest != header.format_digest:
        raise SavedCacheError(
            f"format_digest is {header.format_digest[:12]}…, the format's own digest is {kv_format.digest[:12]}…"
        )
    return header, kv_format, geometry


def _header_bytes(fields: dict[str, Any], stored: list[StoredArray]) -> bytes:
    header = SavedHeader.model_validate({**fields, "digest": header_digest(fields)})
    return container_header(stored, METADATA_KEY, canonical_json(header.to_json()).decode())


@contextmanager
def _naming(path: Path) -> Generator[None]:
    """Errors of the block as SavedCacheErrors that begin with the path."""
    try:
        yield
    except ValidationError as error:
        raise SavedCacheError(f"{path}: {_field_error(error)}") from error
    except KvassayError as error:
        message = str(error) if isinstance(error, SavedCacheError | ContainerError) else one_line(error)
        raise SavedCacheError(f"{path}: {message}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SavedCacheError(f"{path}: cannot be read: {one_line(error)}") from error


def _field_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"header field {'.'.join(map(str, first['loc']))[:200]}: {first['msg']}"


def _listed(padding: tuple[int, ...] | None) -> list[int] | None:
    return None if padding is None else list(padding)


def _shown(revision: str | None) -> str:
    return "none" if revision is None else repr(revision[:100])
