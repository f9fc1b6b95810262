"""E2M1, the 4-bit float: bits s|ee|m, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 (OCP MX v1.0, section 5.3.3).

Rounding is to nearest, halves to the even code; magnitudes of 7 and more would round beyond the grid and saturate at 6.
The sign bit of a negative value that rounds to zero is kept, as casts of the format do.
Two codes a byte, the first in the low half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.formats.base import Streams
from kvassay.formats.grouping import block_codes, group_values, load_parameters, unblock_codes, ungroup_values
from kvassay.formats.packing import pack_codes, unpack_codes

LARGEST = 6.0
SATURATES_FROM = 7.0
"""The first magnitude that does not round to the grid: halfway from 6 to the 8 that would follow."""
GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

E4M3_LARGEST = 448.0
E4M3_SMALLEST = 2.0**-9
E4M3_SATURATES_ABOVE = 464.0


def nearest_codes(scaled: Tensor) -> Tensor:
    """uint8 codes 0 to 15 of values on the grid's scale."""
    magnitude = scaled.abs()
    # Codes are linear in the value below 2, from 2 to 4, and above; torch.round takes halves to even.
    codes = torch.where(
        magnitude < 2,
        torch.round(2 * magnitude),
        torch.where(magnitude < 4, torch.round(magnitude) + 2, torch.round(magnitude / 2) + 4),
    )
    return codes.clamp_max(7).to(torch.uint8) | torch.signbit(scaled).to(torch.uint8) << 3


def code_values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Values on the grid's scale of codes 0 to 15."""
    grid = torch.tensor([*GRID, *(-value for value in GRID)], dtype=dtype, device=codes.device)
    return grid[codes.to(torch.int32)]


def pack_blocks(codes: Tensor, spec: QuantSpec) -> Tensor:
    """The `codes` stream of a grouped view of codes."""
    return block_codes(pack_codes(ungroup_values(codes, spec), 4), spec)


def decode_blocks(streams: Streams, spec: QuantSpec, dtype: torch.dtype, global_scale: Tensor | None = None) -> Tensor:
    """code · (scale · global scale), computed in float32 at least: float16 does not hold every scale."""
    computing = dtype if dtype == torch.float64 else torch.float32
    codes = unpack_codes(unblock_codes(streams["codes"]), 4)
    grouped, _ = group_values(code_values(codes, computing), spec)
    scale = load_parameters(streams["scales"].to(computing), spec)
    if global_scale is not None:
        scale = scale * global_scale.to(computing)
    return ungroup_values(grouped * scale, spec).to(dtype)


def e4m3_scale(ratio: Tensor) -> Tensor:
    """Block scale as float8_e4m3fn: nearest, at most 448. One for a zero block, at least 2^−9 for any other."""
    scale = ratio.clamp(E4M3_SMALLEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    return torch.where(ratio == 0, torch.ones_like(scale), scale)


def count_saturated(scaled: Tensor, ratio: Tensor) -> int:
    """Values cut to 6 because their block's scale saturated; those that rounding of a scale cuts are its error."""
    return int(torch.count_nonzero((scaled.abs() >= SATURATES_FROM) & (ratio > E4M3_SATURATES_ABOVE)))
