"""From a stored side to what the compiled module needs of it, or a sentence on why it cannot read it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvassay.core.kernel_reach import region_named, shape_obstacle
from kvassay.core.kv_format import SidePlan
from kvassay.core.paging import PageLayout
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.formats import Calibration, quantizer
from kvassay.formats.tile_reading import TileReading
from kvassay.kernels.native import native_module

_CODES = {
    "int8": 0,
    "uint4": 1,
    "uint2": 2,
    "float8_e4m3fn": 3,
    "table4": 4,
    "float16": 5,
    "bfloat16": 6,
    "float32": 7,
    "uint8": 8,
    "table2": 9,
}
_NO_SCALE, _TOKEN_SCALES, _CHANNEL_SCALES = 0, 1, 2
_SCALE_TYPES = {"float16": 0, "float32": 1, "bfloat16": 2}


class TileSide(NamedTuple):
    """A side as the compiled module reads it."""

    coded: Any
    """Its `TileFormat` of coded pages."""
    tail: Any
    sinks: Any
    head_scale: np.ndarray | None
    """`[kv_heads]` float32, what numbers of codes are multiplied with beside the scales of their tokens."""
    basis: Tensor | None
    """`[dim, dim]` float32: channels times it are what the codes stand for. None where they are the channels."""


def obstacle(plan: SidePlan, layout: PageLayout, dim: int) -> str | None:
    """Why kernels cannot read the coded pages of a side; None where they can."""
    if (found := shape_obstacle(plan, layout, dim)) is not None:
        return found
    spec = plan.spec
    if quantizer(spec).tile_reading(dim) is None:
        return f"codes of {spec.method} ({spec.num_bits} bit) must be decoded first"
    return None


def tile_side(
    plan: SidePlan,
    layouts: tuple[PageLayout, PageLayout, PageLayout],
    exact_dtype: str,
    kv_heads: int,
    dim: int,
    calibration: Calibration | None,
) -> TileSide:
    """A side without an obstacle; `layouts` of coded, tail and sink pages."""
    reading = quantizer(plan.spec).tile_reading(dim)
    assert reading is not None, "the caller asked for obstacles"
    coded, tail, sinks = layouts
    floats = TileReading(exact_dtype)  # pyright: ignore[reportArgumentType]
    return TileSide(
        coded=_tile_format(reading, plan.spec, coded, dim),
        tail=_tile_format(floats, None, tail, dim),
        sinks=_tile_format(floats, None, sinks, dim),
        head_scale=_head_scale(reading, plan.spec, kv_heads, calibration),
        basis=_basis(plan.spec, dim),
    )


@lru_cache(maxsize=64)
def _basis(spec: QuantSpec, dim: int) -> Tensor | None:
    """The same for all layers and caches, which share it: making it takes some times its own memory."""
    reading = quantizer(spec).tile_reading(dim)
    if reading is None or reading.basis is None:
        return None
    return reading.basis(torch.eye(dim, dtype=torch.float64)).to(torch.float32)


def float_format(dtype: str, layout: PageLayout, dim: int) -> Any:
    """The `TileFormat` of pages of plain floats."""
    return _tile_format(TileReading(dtype), None, layout, dim)  # pyright: ignore[reportArgumentType]


def _tile_format(reading: TileReading, spec: QuantSpec | None, layout: PageLayout, dim: int) -> Any:
    scales, minimums = region_named(layout, "scales"), region_named(layout, "minimums")
    mode = _NO_SCALE
    if spec is not None and scales is not None:
        mode = _CHANNEL_SCALES if spec.granularity is Granularity.CHANNEL else _TOKEN_SCALES
    group = dim if spec is None or spec.granularity is not Granularity.GROUP else spec.group_size or dim
    table = reading.table
    return native_module().TileFormat(
        code=_CODES[reading.code],
        dim=dim,
        scale_mode=mode,
        scale_type=0 if scales is None else _SCALE_TYPES[scales.stream.dtype],
        group=group,
        has_minimum=minimums is not None,
        offset=reading.offset,
        page_tokens=layout.tokens,
        block_tokens=layout.block_tokens,
        tile_nbytes=layout.tile_nbytes,
        scales_offset=0 if scales is None else scales.offset,
        minimums_offset=0 if minimums is None else minimums.offset,
        # A table of four is repeated: a kernel looks up the lowest four bits of what it holds.
        table=None if table is None else np.array(table * (16 // len(table)), np.float32),
    )


def _head_scale(
    reading: TileReading, spec: QuantSpec, kv_heads: int, calibration: Calibration | None
) -> np.ndarray | None:
    scale = np.full(kv_heads, reading.factor, np.float32)
    if spec.is_static:
        assert calibration is not None, "a static spec is calibrated before its first token"
        scale = scale * calibration.parameters["scale"].to(torch.float32).flatten().numpy()
    return None if (scale == 1).all() else np.ascontiguousarray(scale, np.float32)
