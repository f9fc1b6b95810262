"""Integer codes by the compiled module: the bytes that `kvassay.formats.integer` computes, for the formats it knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvassay.core.spec import Granularity, QuantSpec
from kvassay.formats import Encoded
from kvassay.kernels.native import native_module, native_state

_SCALE_TYPES = {"float16": 0, "float32": 1, "bfloat16": 2}


def encodes(spec: QuantSpec) -> bool:
    """True where `encode` serves a spec."""
    return (
        spec.method == "int"
        and spec.granularity in (Granularity.GROUP, Granularity.TOKEN_HEAD)
        and (spec.num_bits in (2, 4) or spec.code_dtype == "int8")
        and spec.scale_dtype in _SCALE_TYPES
        and spec.rotation is None
        and not spec.mean
        and native_state().missing is None
    )


def integer_grid(spec: QuantSpec, dim: int) -> Any:
    """The grid of a spec that is served, for the compiled module's own calls."""
    assert spec.scale_dtype is not None, "the caller asked whether the spec is served"
    return native_module().IntegerGrid(
        num_bits=spec.num_bits,
        symmetric=spec.symmetric,
        is_signed=spec.code_dtype == "int8",
        group=_group(spec, dim),
        scale_type=_SCALE_TYPES[spec.scale_dtype],
    )


def _group(spec: QuantSpec, dim: int) -> int:
    """Values that share a scale."""
    group = spec.group_size if spec.granularity is Granularity.GROUP else dim
    assert group is not None, "a granularity by group has a size"
    return group


def encode(spec: QuantSpec, values: Tensor) -> Encoded | None:
    """Codes of `[batch, kv_heads, tokens, dim]`; None where the codec must do it or has an error to raise."""
    if values.dtype == torch.float64 or values.device.type != "cpu" or not values.numel():
        return None
    *outer, dim = values.shape
    group = _group(spec, dim)
    if dim % group or group * spec.num_bits % 8:
        return None
    values = values.to(torch.float32).contiguous()
    is_signed = spec.code_dtype == "int8"
    assert spec.scale_dtype is not None, "the caller asked whether the spec is served"
    codes = torch.empty((*outer, 1, dim * spec.num_bits // 8), dtype=torch.int8 if is_signed else torch.uint8)
    scales = torch.empty((*outer, dim // group), dtype=getattr(torch, spec.scale_dtype))
    minimums = torch.empty_like(scales) if spec.has_minimum else None
    fits = native_module().encode_integers(
        values=values.numpy(),
        dim=dim,
        group=group,
        num_bits=spec.num_bits,
        symmetric=spec.symmetric,
        is_signed=is_signed,
        scale_type=_SCALE_TYPES[spec.scale_dtype],
        codes=codes.view(torch.uint8).numpy(),
        scales=scales.view(torch.uint8).numpy(),
        minimums=None if minimums is None else minimums.view(torch.uint8).numpy(),
    )
    if not fits:
        return None
    streams = {"codes": codes, "scales": scales}
    if minimums is not None:
        streams["minimums"] = minimums
    # Scale and minimum are rounded outward, so no value saturates.
    return Encoded(streams, 0)
