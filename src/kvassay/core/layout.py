"""Which arrays a spec stores, and how large they are.

This is the one place that knows the stored bytes of a spec. The codecs allocate from it and the ledger predicts from
it, so a prediction and a real cache cannot drift apart unnoticed: a test sums the real storages.
"""

from __future__ import annotations

from kvassay.core.geometry import Owner
from kvassay.core.methods import Stream, method_of
from kvassay.core.spec import STATIC, Granularity, QuantSpec
from kvassay.errors import GeometryError

__all__ = [
    "Stream",
    "code_stream",
    "group_channels",
    "rotation_block",
    "scale_stream",
    "scaled_layout",
    "static_nbytes",
    "static_streams",
    "stored_bits_per_value",
    "streams",
]


def streams(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """The arrays that one side of one layer stores for each block of `spec.tokens_per_block` tokens.

    `dim` is head_dim for keys, value_dim for values. Static arrays belong to the layer and not to any token;
    `static_streams` has them. Raises GeometryError where the spec cannot serve `dim`.
    """
    rotation_block(spec, dim)
    return (method_of(spec).layout or scaled_layout)(spec, kv_heads, dim)


def scaled_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """Packed codes, then scales and minimums as the granularity says."""
    codes = code_stream(spec, kv_heads, dim)
    if spec.scale_dtype is None or spec.is_static:
        return (codes,)
    scales = scale_stream(spec, kv_heads, dim)
    if not spec.has_minimum:
        return (codes, scales)
    return (codes, scales, scales._replace(name="minimums", owner=Owner.ZERO_POINTS))


def code_stream(spec: QuantSpec, kv_heads: int, dim: int) -> Stream:
    """Codes of a block: a row of `dim` codes a token, densely packed; a row begins on a byte."""
    tokens = spec.tokens_per_block
    if spec.code_dtype != "uint8":
        return Stream("codes", Owner.CODES, spec.code_dtype, kv_heads, (tokens, dim))
    if dim * spec.num_bits % 8:
        fit = 8 if spec.num_bits % 2 else 8 // (spec.num_bits & -spec.num_bits)
        raise GeometryError(
            f"head_dim {dim} is not a multiple of {fit}, so a row of {spec.num_bits}-bit codes does not fill its bytes"
        )
    return Stream("codes", Owner.CODES, "uint8", kv_heads, (tokens, dim * spec.num_bits // 8))


def scale_stream(spec: QuantSpec, kv_heads: int, dim: int) -> Stream:
    """One scale for each group of the granularity."""
    assert spec.scale_dtype is not None, "a granularity has a scale dtype"
    heads = 1 if spec.granularity is Granularity.TOKEN else kv_heads
    match spec.granularity:
        case Granularity.TOKEN | Granularity.TOKEN_HEAD:
            shape = (1,)
        case Granularity.CHANNEL:
            shape = (dim,)
        case Granularity.GROUP | Granularity.BLOCK:
            shape = (dim // group_channels(spec, dim),)
        case _:
            raise AssertionError(f"{spec.granularity} stores no scale with its tokens")
    return Stream("scales", Owner.SCALES, spec.scale_dtype, heads, shape)


def group_channels(spec: QuantSpec, dim: int) -> int:
    """Channels that share a scale, for groups and blocks; raises GeometryError where they do not divide `dim`."""
    group = spec.group_size or dim
    if dim % group:
        raise GeometryError(
            f"head_dim {dim} is not a multiple of group {group}; use group {_largest_group(dim, group)} or {dim}"
        )
    return group


def static_streams(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """The arrays that a side stores once a layer, whatever its length: scale, minimum, a method's own, mean."""
    found: list[Stream] = []
    if spec.granularity in STATIC and spec.scale_dtype is not None:
        heads = 1 if spec.granularity is Granularity.TENSOR else kv_heads
        channels = dim if spec.granularity is Granularity.STATIC_CHANNEL else 1
        scale = Stream("scale", Owner.SCALES, spec.scale_dtype, heads, (1, channels))
        found.append(scale)
        if spec.has_minimum:
            found.append(scale._replace(name="minimum", owner=Owner.ZERO_POINTS))
    static_layout = method_of(spec).static_layout
    if static_layout is not None:
        found += static_layout(spec, kv_heads, dim)
    if spec.mean:
        found.append(Stream("mean", Owner.ZERO_POINTS, "float32", kv_heads, (1, dim)))
    return tuple(found)


def static_nbytes(spec: QuantSpec, kv_heads: int, dim: int) -> dict[Owner, int]:
    """Bytes of `static_streams` by owner."""
    nbytes: dict[Owner, int] = {}
    for stream in static_streams(spec, kv_heads, dim):
        nbytes[stream.owner] = nbytes.get(stream.owner, 0) + stream.block_nbytes
    return nbytes


def stored_bits_per_value(spec: QuantSpec, kv_heads: int, dim: int) -> float:
    """Real bits a stored value costs, scales and minimums included (4-bit, group 64, fp16 pair: 4.5)."""
    nbytes = sum(stream.block_nbytes for stream in streams(spec, kv_heads, dim))
    return 8 * nbytes / (spec.tokens_per_block * kv_heads * dim)


def rotation_block(spec: QuantSpec, dim: int) -> int | None:
    """Channels of one Hadamard block; None without a rotation. Raises GeometryError where it does not divide `dim`."""
    if spec.rotation is None:
        return None
    largest = dim & -dim
    block = spec.rotation.block or largest
    if dim % block:
        raise GeometryError(f"head_dim {dim} is not a multiple of the Hadamard block {block}; use had={largest}")
    return block


def _largest_group(dim: int, group: int) -> int:
    return max(size for size in range(1, min(dim, group) + 1) if dim % size == 0)
