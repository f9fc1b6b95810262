"""Dense packing of unsigned codes: 8 / num_bits codes a byte, the first code in the lowest bits."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor


def pack_codes(codes: UInt8[Tensor, "*shape dim"], num_bits: int) -> UInt8[Tensor, "*shape packed"]:
    """Pack codes below 2**num_bits along the last axis; `dim` must be a multiple of 8 / num_bits."""
    if num_bits == 8:
        return codes
    codes_per_byte = 8 // num_bits
    lanes = codes.unflatten(-1, (-1, codes_per_byte))
    packed = lanes[..., 0].clone()
    for lane in range(1, codes_per_byte):
        packed |= lanes[..., lane] << (lane * num_bits)
    return packed


def unpack_codes(packed: UInt8[Tensor, "*shape packed"], num_bits: int) -> UInt8[Tensor, "*shape dim"]:
    """Inverse of `pack_codes`."""
    if num_bits == 8:
        return packed
    mask = (1 << num_bits) - 1
    lanes = [(packed >> shift) & mask for shift in range(0, 8, num_bits)]
    return torch.stack(lanes, dim=-1).flatten(-2)
