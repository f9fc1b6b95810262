"""Dense packing of unsigned codes of 1 to 8 bits: a row is one little-endian stream of bits.

Code i of a row takes bits i·b to i·b + b − 1, counted from the lowest bit of the first byte. At 4 bit that is two codes
a byte with the first in the low half; at 3, 5, 6 and 7 bit codes cross bytes.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import UInt8
from torch import Tensor


def pack_codes(codes: UInt8[Tensor, "*shape dim"], num_bits: int) -> UInt8[Tensor, "*shape packed"]:
    """Pack codes below 2**num_bits along the last axis; `dim * num_bits` must be a multiple of 8."""
    if num_bits == 8:
        return codes
    if 8 % num_bits == 0:
        lanes = codes.unflatten(-1, (-1, 8 // num_bits))
        packed = lanes[..., 0].clone()
        for lane in range(1, 8 // num_bits):
            packed |= lanes[..., lane] << (lane * num_bits)
        return packed
    count, nbytes = _period(num_bits)
    lanes = codes.unflatten(-1, (-1, count))
    packed = codes.new_zeros((*lanes.shape[:-1], nbytes))
    for lane in range(count):
        byte, shift = divmod(lane * num_bits, 8)
        packed[..., byte] |= lanes[..., lane] << shift  # uint8 drops the bits that belong to the next byte
        if shift + num_bits > 8:
            packed[..., byte + 1] |= lanes[..., lane] >> (8 - shift)
    return packed.flatten(-2)


def unpack_codes(packed: UInt8[Tensor, "*shape packed"], num_bits: int) -> UInt8[Tensor, "*shape dim"]:
    """Inverse of `pack_codes`."""
    if num_bits == 8:
        return packed
    mask = (1 << num_bits) - 1
    if 8 % num_bits == 0:
        return torch.stack([(packed >> shift) & mask for shift in range(0, 8, num_bits)], dim=-1).flatten(-2)
    count, nbytes = _period(num_bits)
    bytes_ = packed.unflatten(-1, (-1, nbytes))
    lanes = []
    for lane in range(count):
        byte, shift = divmod(lane * num_bits, 8)
        code = bytes_[..., byte] >> shift
        if shift + num_bits > 8:
            code = code | bytes_[..., byte + 1] << (8 - shift)
        lanes.append(code & mask)
    return torch.stack(lanes, dim=-1).flatten(-2)


def _period(num_bits: int) -> tuple[int, int]:
    """Codes and bytes after which the pattern repeats."""
    common = math.gcd(8, num_bits)
    return 8 // common, num_bits // common
