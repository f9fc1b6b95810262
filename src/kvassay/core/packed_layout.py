"""What a packed layer of keys and values consists of, and the header that describes it. No torch.

`docs/spec/packed-kv.md` is this module in prose. The arrays follow from format, layer and shape alone, so a reader
knows every name, type, shape and byte before it allocates one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from kvassay.core.digest import sha256_json
from kvassay.core.geometry import LayerGeometry, Owner
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.layout import static_streams, streams
from kvassay.core.spec import DTYPE_NBYTES, FloatDtype, QuantSpec
from kvassay.errors import FormatError

SCHEMA = "kvassay.packed-kv/1"

_MAX_LAYER = 1 << 16
_MAX_HEADS = 1 << 12
_MAX_WIDTH = 1 << 16
"""Bounds for hostile headers; real models stay far below."""
_MAX_TOKENS = 1 << 40


class PackedGeometry(BaseModel):
    """Shape of what was packed: keys `[batch, kv_heads, tokens, head_dim]`, values `[..., value_dim]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: int = Field(ge=1, le=_MAX_TOKENS)
    kv_heads: int = Field(ge=1, le=_MAX_HEADS)
    tokens: int = Field(ge=1, le=_MAX_TOKENS)
    head_dim: int = Field(ge=1, le=_MAX_WIDTH)
    value_dim: int = Field(ge=1, le=_MAX_WIDTH)


class DeclaredArray(NamedTuple):
    """An array that a packed layer stores; arrays without elements are not stored."""

    name: str
    owner: Owner
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        elements = 1
        for size in self.shape:
            elements *= size
        return elements * DTYPE_NBYTES[self.dtype]


class PackedSide(NamedTuple):
    """Keys or values of one head group, in the order of tokens: sinks, whole coded blocks, tail."""

    name: str
    """`group0.keys`; its arrays begin with it."""
    heads: tuple[int, ...]
    plan: SidePlan
    dim: int
    exact_dtype: FloatDtype
    """What every value is rounded to on entry, and what sinks and tail are stored in."""
    sink_tokens: int
    coded_tokens: int
    tail_tokens: int
    arrays: tuple[DeclaredArray, ...]
    """Static arrays, sinks, blocks, tail."""

    @property
    def is_keys(self) -> bool:
        return self.name.endswith(".keys")

    @property
    def static_prefix(self) -> str:
        return f"{self.name}.static."

    @property
    def block_prefix(self) -> str:
        return f"{self.name}.block."

    @property
    def sinks_name(self) -> str:
        return f"{self.name}.exact.sinks"

    @property
    def tail_name(self) -> str:
        return f"{self.name}.exact.tail"


def packed_sides(kv_format: KVFormat, layer: int, geometry: PackedGeometry) -> tuple[PackedSide, ...]:
    """Sides of a layer: keys and values of each head group. Raises FormatError or GeometryError.

    The split into sinks, blocks and tail is that of a cache after one append of all tokens.
    """
    for override in kv_format.overrides:
        if layer in override.layers and override.heads is not None and override.heads[-1] >= geometry.kv_heads:
            raise FormatError(
                f"{kv_format.name} names KV head {override.heads[-1]} of layer {layer}, which has heads 0 to "
                f"{geometry.kv_heads - 1}"
            )
    layer_geometry = LayerGeometry(kv_heads=geometry.kv_heads, head_dim=geometry.head_dim, value_dim=geometry.value_dim)
    sides: list[PackedSide] = []
    for index, group in enumerate(head_groups(kv_format, layer, layer_geometry)):
        for side, plan, dim in (("keys", group.keys, geometry.head_dim), ("values", group.values, geometry.value_dim)):
            sides.append(_side(f"group{index}.{side}", group.heads, plan, dim, kv_format, layer, geometry))
    return tuple(sides)


def _side(
    name: str,
    heads: tuple[int, ...],
    plan: SidePlan,
    dim: int,
    kv_format: KVFormat,
    layer: int,
    geometry: PackedGeometry,
) -> PackedSide:
    spec, batch, tokens = plan.spec, geometry.batch, geometry.tokens
    sinks, coded = min(tokens, plan.sinks), plan.committed_tokens(tokens)
    tail = tokens - sinks - coded
    exact_dtype: FloatDtype = kv_format.exact_dtype
    if spec.is_exact:
        exact_dtype = spec.code_dtype  # pyright: ignore[reportAssignmentType]  (a plain float's element is a float)
    blocks = coded // spec.tokens_per_block
    exact = DeclaredArray("", Owner.SINKS, exact_dtype, ())
    found = [
        *(
            DeclaredArray(f"{name}.static.{each.name}", each.owner, each.dtype, (each.heads, *each.block_shape))
            for each in static_streams(spec, len(heads), dim)
        ),
        exact._replace(name=f"{name}.exact.sinks", shape=(batch, len(heads), sinks, dim)),
        *(
            DeclaredArray(
                f"{name}.block.{each.name}",
                Owner.SKIPPED_LAYERS if kv_format.skips(layer) else each.owner,
                each.dtype,
                (batch, each.heads, blocks, *each.block_shape),
            )
            for each in streams(spec, len(heads), dim)
        ),
        exact._replace(name=f"{name}.exact.tail", owner=Owner.WINDOW, shape=(batch, len(heads), tail, dim)),
    ]
    stored = tuple(array for array in found if array.nbytes)
    return PackedSide(name, heads, plan, dim, exact_dtype, sinks, coded, tail, stored)


def canonical_format(kv_format: KVFormat) -> dict[str, Any]:
    """The JSON value whose canonical form's SHA-256 is the format's digest: fields at their defaults are left out."""
    fields = kv_format.model_dump(mode="json", exclude_defaults=True)
    return {**fields, "layout_version": kv_format.layout_version}


class SideHeader(BaseModel):
    """One side as a reader needs it: nothing is left to a default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: tuple[int, ...]
    """KV heads, in the order of the arrays' second axis."""
    spec: QuantSpec
    exact_dtype: FloatDtype
    sink_tokens: int = Field(ge=0)
    coded_tokens: int = Field(ge=0)
    tail_tokens: int = Field(ge=0)
    tokens_per_block: int = Field(ge=1)
    hadamard_block: int | None
    """Channels of one Hadamard block; null without a rotation."""
    scale_source: str = Field(min_length=1, max_length=1000)
    """Where scales come from: `dynamic`, `unit`, `none`, or what calibrated them."""
    clipped_values: int = Field(ge=0)
    """Finite values that saturated when they were encoded."""


class ArrayHeader(BaseModel):
    """One stored array; `sha256` is of its bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: Owner
    dtype: str
    shape: tuple[int, ...]
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class PackedHeader(BaseModel):
    """The whole header. `digest` is the SHA-256 of the canonical JSON of the rest, and so names content and format."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True)

    schema_: Literal["kvassay.packed-kv/1"] = Field(default=SCHEMA, alias="schema")
    layout_version: int
    format: dict[str, Any]
    format_digest: str = Field(pattern="^[0-9a-f]{64}$")
    layer: int = Field(ge=0, le=_MAX_LAYER)
    geometry: PackedGeometry
    sides: dict[str, SideHeader]
    arrays: dict[str, ArrayHeader]
    digest: str = Field(pattern="^[0-9a-f]{64}$")

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def header_digest(header: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a header's value without its `digest`."""
    return sha256_json({name: value for name, value in header.items() if name != "digest"})
