"""Keys and values of one layer, packed by a format: encode, count, decode, save.

    fmt = kvassay.format("k=int4:channel32,v=int4:group32,sinks=4,recent=128")
    packed = fmt.encode(k, v)
    k_read, v_read = fmt.decode(packed)

What is stored is what a cache stores after one append of all tokens, without the unused end of its last page: sinks,
whole coded blocks, and a tail of recent and waiting tokens, every value first rounded to the format's exact dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import Basis, ByteLedger
from kvassay.core.packed_layout import PackedGeometry, PackedSide, packed_sides
from kvassay.errors import CalibrationError, ForeignFormatError, FormatError, GeometryError, KvassayError, RangeError
from kvassay.formats.base import Calibration, decode_as, require_finite
from kvassay.formats.calibration import MIN_MAX, CalibrationPolicy, as_policy, require_calibration
from kvassay.formats.floating import round_to
from kvassay.formats.registry import quantizer

OnClip = Literal["raise", "count"]
SideCalibration = tuple[Calibration | None, Calibration | None]
"""Static arrays of keys and of values of one head group."""
LayerCalibration = tuple[SideCalibration, ...]
"""One entry a head group of the layer; `QuantizedCache` takes the same."""

_ASSUMPTIONS = (
    "Persistent bytes are the storages of the packed arrays: codes, scales, minimums, static arrays, full-precision "
    "sinks and tail. No page is padded.",
    "Codes are tightly packed; object headers, allocator rounding and a file's header are excluded.",
    "The transient figure is the layer's keys and values, decoded to float32.",
)


class DecodedKV(NamedTuple):
    """Keys `[batch, kv_heads, tokens, head_dim]` and values `[batch, kv_heads, tokens, value_dim]`."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class PackedKV:
    """The packed arrays of one layer. Made by `PackedFormat.encode` and `load_packed`; not changed afterwards."""

    kv_format: KVFormat
    layer: int
    geometry: PackedGeometry
    arrays: Mapping[str, Tensor]
    """Every stored array by name, as `core.packed_layout` declares them; each has a storage of its own."""
    scale_sources: Mapping[str, str]
    """Where the scales of each side come from."""
    clipped_values: Mapping[str, int]
    """Finite values of each side that saturated when they were encoded."""

    @property
    def sides(self) -> tuple[PackedSide, ...]:
        return packed_sides(self.kv_format, self.layer, self.geometry)

    @property
    def nbytes(self) -> int:
        """Bytes of the real storages, all of them."""
        return sum(array.untyped_storage().nbytes() for array in self.arrays.values())

    def ledger(self) -> ByteLedger:
        """Bytes of the real storages by side and owner; they sum to `nbytes`."""
        keys: Counter[Owner] = Counter()
        values: Counter[Owner] = Counter()
        for side in self.sides:
            for declared in side.arrays:
                counted = keys if side.is_keys else values
                counted[declared.owner] += self.arrays[declared.name].untyped_storage().nbytes()
        shape = self.geometry
        elements = shape.batch * shape.kv_heads * shape.tokens * (shape.head_dim + shape.value_dim)
        return ByteLedger(
            format_name=self.kv_format.name,
            format_digest=self.kv_format.digest,
            basis=Basis.ALLOCATED,
            tokens=shape.tokens,
            batch=shape.batch,
            keys_nbytes=dict(keys),
            values_nbytes=dict(values),
            peak_transient_nbytes=4 * elements,
            transient_basis=Basis.COMPUTED,
            float32_nbytes=4 * elements,
            float16_nbytes=2 * elements,
            assumptions=_ASSUMPTIONS,
        )

    def save(self, path: str | Path) -> None:
        """Write a packed-KV file (docs/spec/packed-kv.md); an existing file is replaced whole or not at all."""
        from kvassay.formats.packed_file import save_packed  # that module is made of this one's types

        save_packed(self, Path(path))

    def __repr__(self) -> str:
        return f"PackedKV({self.kv_format.name}, layer {self.layer}, {self.geometry!r}, {self.nbytes} B)"


class PackedFormat:
    """A KV format that packs tensors. Stateless; `kv_format` is its identity."""

    def __init__(self, kv_format: KVFormat) -> None:
        if kv_format.transforms_keys:
            raise FormatError(
                f"{kv_format.name} removes key bias or rotary embedding, which needs the model; store its keys with "
                "QuantizedCache.for_model(model, format), or leave keybias=removed and rope=removed out"
            )
        self.kv_format = kv_format

    def encode(
        self,
        keys: Float[Tensor, "batch kv_heads tokens head_dim"],
        values: Float[Tensor, "batch kv_heads tokens value_dim"],
        *,
        layer: int | None = None,
        calibration: LayerCalibration | None = None,
        on_clip: OnClip = "raise",
    ) -> PackedKV:
        """Pack all tokens of one layer.

        `layer` is needed by a format that treats layers differently. `calibration`, from `calibrate`, is needed by
        static scales and means. `on_clip="raise"` refuses values that saturate, `"count"` keeps and counts them.
        Raises NonFiniteError, RangeError, CalibrationError, FormatError or GeometryError.
        """
        layer, geometry = self._layer(layer), _geometry(keys, values)
        sides = packed_sides(self.kv_format, layer, geometry)
        given = _calibrations(calibration, sides, self.kv_format)
        arrays: dict[str, Tensor] = {}
        clipped: dict[str, int] = {}
        sources: dict[str, str] = {}
        for side in sides:
            try:
                own = _checked_calibration(given[side.name], side)
                found, clipped[side.name] = _encode_side(side, keys if side.is_keys else values, own, on_clip)
            except KvassayError as error:
                raise type(error)(f"{'keys' if side.is_keys else 'values'} of layer {layer}: {error}") from error
            arrays.update(found)
            sources[side.name] = own.source if own is not None else quantizer(side.plan.spec).scale_source
        return PackedKV(
            self.kv_format,
            layer,
            geometry,
            MappingProxyType(arrays),
            MappingProxyType(sources),
            MappingProxyType(clipped),
        )

    def decode(self, packed: PackedKV, dtype: torch.dtype = torch.float32) -> DecodedKV:
        """Keys and values as a query of a model of `dtype` would read them; raises ForeignFormatError for others'."""
        if packed.kv_format != self.kv_format:
            raise ForeignFormatError(
                f"these bytes are {packed.kv_format.name} (digest {packed.kv_format.digest[:12]}) and the decoder is "
                f"{self.kv_format.name} ({self.kv_format.digest[:12]}); decode with kvassay.format(packed.kv_format)"
            )
        sides = packed.sides
        return DecodedKV(
            _all_heads([(side.heads, _decode_side(side, packed, dtype)) for side in sides if side.is_keys]),
            _all_heads([(side.heads, _decode_side(side, packed, dtype)) for side in sides if not side.is_keys]),
        )

    def calibrate(
        self,
        keys: Float[Tensor, "batch kv_heads tokens head_dim"],
        values: Float[Tensor, "batch kv_heads tokens value_dim"],
        *,
        layer: int | None = None,
        policy: str | CalibrationPolicy = MIN_MAX,
    ) -> LayerCalibration:
        """Static scales, minimums and means from sample keys and values; None for a side that needs none.

        `policy`: min-max, mse or percentile P. Raises CalibrationError for another one.
        """
        policy = as_policy(policy)
        layer, geometry = self._layer(layer), _geometry(keys, values)
        sides = packed_sides(self.kv_format, layer, geometry)
        found = [
            quantizer(side.plan.spec).calibrate((keys if side.is_keys else values)[:, list(side.heads)], policy)
            if side.plan.spec.needs_calibration
            else None
            for side in sides
        ]
        return tuple(zip(found[0::2], found[1::2], strict=True))

    def _layer(self, layer: int | None) -> int:
        named = self.kv_format.largest_layer
        if layer is None and named is not None:
            raise FormatError(
                f"{self.kv_format.name} stores some layers otherwise, so bytes depend on the layer; pass layer="
            )
        if layer is not None and layer < 0:
            raise FormatError(f"layer {layer} is negative; count layers from 0")
        return layer or 0

    def __repr__(self) -> str:
        return f"PackedFormat({self.kv_format.name!r})"


def format(kv_format: KVFormat | str) -> PackedFormat:
    """A format by name (`kivi-4`, `k=int4:channel32,v=int4:group32,sinks=4`) or value; FormatError for bad names."""
    return PackedFormat(parse_format(kv_format) if isinstance(kv_format, str) else kv_format)


def load_packed(path: str | Path) -> PackedKV:
    """Read a packed-KV file; raises PackedKVError naming what is wrong with one that cannot be trusted."""
    from kvassay.formats.packed_file import read_packed  # that module is made of this one's types

    return read_packed(Path(path))


def _geometry(keys: Tensor, values: Tensor) -> PackedGeometry:
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.dim() != 4 or not tensor.is_floating_point():
            raise GeometryError(
                f"{name} are {tensor.dtype} of shape {list(tensor.shape)}; expected floats of shape "
                "[batch, kv_heads, tokens, dim]"
            )
        if 0 in tensor.shape:
            raise GeometryError(f"{name} have shape {list(tensor.shape)}; at least one token of one head is expected")
    if keys.shape[:3] != values.shape[:3]:
        raise GeometryError(
            f"keys have [batch, kv_heads, tokens] = {list(keys.shape[:3])}, values {list(values.shape[:3])}; "
            "pass both before they are repeated to query heads"
        )
    batch, kv_heads, tokens, head_dim = keys.shape
    return PackedGeometry(batch=batch, kv_heads=kv_heads, tokens=tokens, head_dim=head_dim, value_dim=values.shape[3])


def _calibrations(
    calibration: LayerCalibration | None, sides: tuple[PackedSide, ...], kv_format: KVFormat
) -> dict[str, Calibration | None]:
    """What was given, by side."""
    num_groups = len(sides) // 2
    groups = ((None, None),) * num_groups if calibration is None else calibration
    if len(groups) != num_groups:
        raise CalibrationError(
            f"{kv_format.name} has {num_groups} head groups in this layer, the calibration has {len(groups)}; "
            "calibrate for this format and layer"
        )
    flat = [each for group in groups for each in group]
    return {side.name: each for side, each in zip(sides, flat, strict=True)}


def _checked_calibration(calibration: Calibration | None, side: PackedSide) -> Calibration | None:
    """The calibration with arrays as the side declares them; None where none is needed."""
    spec = side.plan.spec
    if not spec.needs_calibration:
        return None
    if calibration is None:
        raise CalibrationError(
            "static scales or means are needed and none were given; pass calibration=fmt.calibrate()"
        )
    require_calibration(
        spec, len(side.heads), side.dim, calibration.parameters, calibration.source, "the given calibration"
    )
    return calibration


def _encode_side(
    side: PackedSide, values: Tensor, calibration: Calibration | None, on_clip: OnClip
) -> tuple[dict[str, Tensor], int]:
    spec = side.plan.spec
    require_finite(values, "entries")
    entering = round_to(values.detach()[:, list(side.heads)], side.exact_dtype)
    begin, end = side.sink_tokens, side.sink_tokens + side.coded_tokens
    parts: dict[str, Tensor] = {side.sinks_name: entering[:, :, :begin], side.tail_name: entering[:, :, end:]}
    clipped_values = 0
    if calibration is not None:
        parts.update({f"{side.static_prefix}{name}": each for name, each in calibration.parameters.items()})
    if side.coded_tokens:
        encoded = quantizer(spec).encode(entering[:, :, begin:end], calibration)
        clipped_values = encoded.clipped_values
        if clipped_values and on_clip == "raise":
            raise RangeError(
                f"{clipped_values} values saturate in {spec.method} with a {'static' if spec.is_static else 'unit'} "
                "scale; use a token-head format, or on_clip='count' to keep the saturated values and their count"
            )
        parts.update({f"{side.block_prefix}{name}": each for name, each in encoded.streams.items()})
    # Clones, so that no array holds the storage of another and their bytes can be summed.
    return {
        declared.name: parts[declared.name].clone(memory_format=torch.contiguous_format) for declared in side.arrays
    }, clipped_values


def _decode_side(side: PackedSide, packed: PackedKV, dtype: torch.dtype) -> Tensor:
    parts: list[Tensor] = []
    if side.sink_tokens:
        parts.append(packed.arrays[side.sinks_name].to(dtype))
    if side.coded_tokens:
        blocks = _named(packed.arrays, side.block_prefix)
        static = _named(packed.arrays, side.static_prefix)
        calibration = Calibration(static, packed.scale_sources[side.name]) if static else None
        parts.append(decode_as(quantizer(side.plan.spec), blocks, dtype, calibration))
    if side.tail_tokens:
        parts.append(packed.arrays[side.tail_name].to(dtype))
    return torch.cat(parts, dim=2)


def _named(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _all_heads(parts: list[tuple[tuple[int, ...], Tensor]]) -> Tensor:
    """Head groups back in the order of heads."""
    if len(parts) == 1:
        return parts[0][1]
    order = [head for heads, _ in parts for head in heads]
    return torch.cat([values for _, values in parts], dim=1)[:, sorted(range(len(order)), key=order.__getitem__)]
