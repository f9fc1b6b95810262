"""Codes by the compiled module: the bytes that the codecs in `kvassay.formats` compute, for the formats it knows.

Those are plain floats, integers of 2, 4 and 8 bits, NF4 with an absmax and float8 e4m3, with a scale for each group of
channels, token, or channel of a block, with or without a rotation. All others are left to their codecs: means, static
scales, shared exponents, outliers, 3, 5 and 6 bits, ggml's blocks, and codebooks that are fitted to a row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kvassay.core.layout import rotation_block
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.formats import Encoded
from kvassay.formats.codebook import midpoints
from kvassay.formats.nf4 import NF4_LEVELS
from kvassay.formats.rotation import channel_signs
from kvassay.kernels.native import instruction_set, native_module, native_state

FLOAT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""Types of values, as the compiled module counts them."""

_SCALE_TYPES = {"float16": 0, "float32": 1, "bfloat16": 2}
_INTEGER, _TABLE, _FLOAT8 = 0, 1, 2
_CHANNEL_STEP = 16
"""Scales of channels are worked out for so many at once."""


def encodes(spec: QuantSpec) -> bool:
    """True where `encode` serves a spec."""
    if spec.is_exact:
        return native_state().missing is None
    return (
        _method(spec) is not None
        and spec.granularity in (Granularity.GROUP, Granularity.TOKEN_HEAD, Granularity.CHANNEL)
        and spec.scale_dtype in _SCALE_TYPES
        and not spec.mean
        and native_state().missing is None
    )


def _method(spec: QuantSpec) -> int | None:
    if spec.method == "int" and spec.num_bits in (2, 4, 8):
        return _INTEGER
    if spec.method == "nf4" and spec.symmetric and not spec.option("outliers"):
        return _TABLE
    if spec.method == "float8" and spec.code_dtype == "float8_e4m3fn":
        return _FLOAT8
    return None


def code_grid(spec: QuantSpec, dim: int) -> Any:
    """The grid of a spec that is served, for the compiled module's own calls."""
    return native_module().CodeGrid(**_grid_arguments(spec, dim))


@lru_cache(maxsize=256)
def _grid_arguments(spec: QuantSpec, dim: int) -> dict[str, Any]:
    assert spec.scale_dtype is not None, "the caller asked whether the spec is served"
    rotation = rotation_block(spec, dim)
    signs = [] if spec.rotation is None else channel_signs(spec.rotation.seed, dim).tolist()
    return {
        "method": _method(spec),
        "num_bits": spec.num_bits,
        "symmetric": spec.symmetric,
        "is_signed": spec.code_dtype == "int8",
        "group": _group(spec, dim),
        "block_tokens": spec.tokens_per_block,
        "scale_type": _SCALE_TYPES[spec.scale_dtype],
        "boundaries": midpoints(NF4_LEVELS) if _method(spec) == _TABLE else [],
        "signs": signs,
        "rotation_block": rotation or 0,
    }


def _group(spec: QuantSpec, dim: int) -> int:
    """Channels of a token that share a scale."""
    group = spec.group_size if spec.granularity is Granularity.GROUP else dim
    assert group is not None, "a granularity by group has a size"
    return group


def _is_servable(spec: QuantSpec, shape: torch.Size) -> bool:
    """Whether rows of this shape fall into whole groups, bytes and blocks."""
    tokens, dim = shape[2:]
    group = _group(spec, dim)
    if tokens % spec.tokens_per_block or dim % group or group * spec.num_bits % 8:
        return False
    return spec.tokens_per_block == 1 or dim % _CHANNEL_STEP == 0


def fit(values: Tensor, kept: torch.dtype) -> bool:
    """Whether `[batch, kv_heads, tokens, dim]` are finite once rounded to `kept`; False where nobody knows, too."""
    if not values.numel():
        return True
    if not _is_readable(values, kept):
        return False
    return native_module().keep_rows(_dense_rows(values), FLOAT_TYPES[kept], None, instruction_set())


def _is_readable(values: Tensor, kept: torch.dtype) -> bool:
    return (
        {values.dtype, kept} <= FLOAT_TYPES.keys()
        and values.is_cpu
        and values.numel() > 0
        and native_state().missing is None
    )


def _dense_rows(values: Tensor) -> Tensor:
    """Without a graph, channels side by side."""
    values = values.detach()
    return values if values.stride(3) == 1 else values.contiguous()


def encode(spec: QuantSpec, values: Tensor, kept: torch.dtype | None = None) -> Encoded | None:
    """Codes of `[batch, kv_heads, tokens, dim]`; None where the codec must do it or has an error to raise.

    Values are rounded to `kept` first, if it is given.
    """
    kept = values.dtype if kept is None else kept
    if spec.is_exact:
        return _encode_floats(getattr(torch, spec.code_dtype), values, kept)
    if not _is_readable(values, kept) or not _is_servable(spec, values.shape):
        return None
    values = _dense_rows(values)
    batch, heads, tokens, dim = values.shape
    block, grid = spec.tokens_per_block, code_grid(spec, dim)
    assert spec.scale_dtype is not None, "the caller asked whether the spec is served"
    outer = (batch, heads, tokens // block)
    codes = torch.empty((*outer, block, dim * spec.num_bits // 8), dtype=torch.uint8)
    numbers = dim if block > 1 else dim // _group(spec, dim)
    scales = torch.empty((*outer, numbers), dtype=getattr(torch, spec.scale_dtype))
    minimums = torch.empty_like(scales) if spec.has_minimum else None
    fits = native_module().encode_rows(
        grid,
        values,
        FLOAT_TYPES[kept],
        codes.numpy(),
        scales.view(torch.uint8).numpy(),
        None if minimums is None else minimums.view(torch.uint8).numpy(),
        instruction_set(),
    )
    if not fits:
        return None
    streams = {"codes": codes.view(getattr(torch, spec.code_dtype)), "scales": scales}
    if minimums is not None:
        streams["minimums"] = minimums
    # Scale and minimum are rounded outward, so no value saturates.
    return Encoded(streams, 0)


def _encode_floats(dtype: torch.dtype, values: Tensor, kept: torch.dtype) -> Encoded | None:
    if not _is_readable(values, kept) or kept not in (values.dtype, dtype):
        return None  # the module rounds once
    codes = torch.empty(values.shape, dtype=dtype)
    rows = codes.view(torch.uint8).numpy()
    if not native_module().keep_rows(_dense_rows(values), FLOAT_TYPES[dtype], rows, instruction_set()):
        return None
    return Encoded({"codes": codes.unsqueeze(3)}, 0)
