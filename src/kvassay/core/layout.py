"""Which arrays a spec stores, and how large they are.

This is the one place that knows the stored bytes of a spec. The codecs allocate from it and the ledger predicts from
it, so a prediction and a real cache cannot drift apart unnoticed: a test sums the real storages.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.geometry import Owner
from kvassay.core.spec import DTYPE_NBYTES, Granularity, QuantSpec
from kvassay.errors import GeometryError


class Stream(NamedTuple):
    """One stored array of a side: `[batch, heads, blocks, *block_shape]` of `dtype`."""

    name: str
    owner: Owner
    dtype: str
    heads: int
    """kv_heads, or 1 where one value serves all heads."""
    block_shape: tuple[int, ...]

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block over all heads of one batch row."""
        elements = self.heads
        for size in self.block_shape:
            elements *= size
        return elements * DTYPE_NBYTES[self.dtype]


def streams(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """The arrays that one side of one layer stores for each block of `spec.tokens_per_block` tokens.

    `dim` is head_dim for keys, value_dim for values. Static per-tensor scales belong to the layer and not to any
    token; `static_nbytes` counts them. Raises GeometryError where the spec cannot serve `dim`.
    """
    tokens = spec.tokens_per_block
    if spec.code_dtype != "uint8":
        codes = Stream("codes", Owner.CODES, spec.code_dtype, kv_heads, (tokens, dim))
    else:
        codes_per_byte = 8 // spec.num_bits
        if dim % codes_per_byte:
            raise GeometryError(
                f"head_dim {dim} is not a multiple of {codes_per_byte}, the codes in a byte at {spec.num_bits} bit"
            )
        codes = Stream("codes", Owner.CODES, "uint8", kv_heads, (tokens, dim // codes_per_byte))
    if spec.scale_dtype is None or spec.is_static:
        return (codes,)
    heads, shape = _scale_shape(spec, kv_heads, dim)
    scales = Stream("scales", Owner.SCALES, spec.scale_dtype, heads, shape)
    if not spec.has_minimum:
        return (codes, scales)
    return (codes, scales, Stream("minimums", Owner.ZERO_POINTS, spec.scale_dtype, heads, shape))


def static_nbytes(spec: QuantSpec) -> int:
    """Bytes that a side stores once a layer, whatever its length: a static scale (and minimum)."""
    if not spec.is_static or spec.scale_dtype is None:
        return 0
    return DTYPE_NBYTES[spec.scale_dtype] * (2 if spec.has_minimum else 1)


def stored_bits_per_value(spec: QuantSpec, kv_heads: int, dim: int) -> float:
    """Real bits a stored value costs, scales and minimums included (4-bit, group 64, fp16 pair: 4.5)."""
    nbytes = sum(stream.block_nbytes for stream in streams(spec, kv_heads, dim))
    return 8 * nbytes / (spec.tokens_per_block * kv_heads * dim)


def _scale_shape(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[int, tuple[int, ...]]:
    match spec.granularity:
        case Granularity.TOKEN:
            return 1, (1,)
        case Granularity.TOKEN_HEAD:
            return kv_heads, (1,)
        case Granularity.CHANNEL:
            return kv_heads, (dim,)
        case Granularity.GROUP:
            group = spec.group_size or dim
            if dim % group:
                raise GeometryError(
                    f"head_dim {dim} is not a multiple of group {group}; "
                    f"use group {_largest_group(dim, group)} or {dim}"
                )
            return kv_heads, (dim // group,)
        case Granularity.NONE | Granularity.TENSOR:
            raise AssertionError(f"{spec.granularity} stores no scale with its tokens")


def _largest_group(dim: int, group: int) -> int:
    return max(size for size in range(1, min(dim, group) + 1) if dim % size == 0)
