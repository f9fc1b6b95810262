"""ggml iq4_nl: 32 codes of 4 bit into a fixed table of 16 levels and a float16 scale; 18 bytes a block (4.5 bits).

With m the value of largest magnitude (sign kept): q = index of the level nearest to x · (−127 / m). Then the scale is
fitted to those codes by least squares with weights x²: d = Σ x²·level·x / Σ x²·level². x̂ = level[q] · d.
The sums run over the block in order of channels, in float32, so that the result is ggml's and the same in any chunking.

Source: ggml-quants, `quantize_row_iq4_nl_ref`, which calls `quantize_row_iq4_nl_impl` without an importance matrix and
without further tries: the path that ggml's CPU copy into a cache takes (its CUDA copy kernel computes codes alike, and
so does `dequantize_row_iq4_nl` the values). Decoding is bit-exact with the `gguf` package; the package cannot encode
this type, so encoding is held against bytes that ggml's own C code wrote (tests/formats/test_ggml_blocks.py).
Deviation: a block with max|x| < 1e-15 has codes 0 here; ggml leaves the codes of the block before. Both decode to zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.formats.base import Calibration, Encoded, Streams
from kvassay.formats.ggml_blocks import (
    BLOCK_SIZE,
    HALF,
    GgmlQuantizer,
    block_bytes,
    byte_order,
    inverse,
    join_halves,
    largest_signed,
    parameter,
    split_halves,
)
from kvassay.formats.grouping import block_codes
from kvassay.formats.tile_reading import TileReading

LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
SMALLEST = 1e-15
"""ggml's GROUP_MAX_EPS: a block whose largest magnitude is below it is stored as zeros."""


class Iq4Quantizer(GgmlQuantizer):
    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        largest = largest_signed(blocks)
        some = largest.abs() >= SMALLEST
        levels = torch.tensor(LEVELS, dtype=torch.float32, device=blocks.device)
        codes = torch.where(some, _nearest_level(blocks * inverse(largest / LEVELS[0]), levels), 0)
        scale = torch.where(some, _fitted_scale(blocks, levels[codes]), 0.0)
        packed = join_halves(codes.to(torch.uint8)).flatten(-2)
        return Encoded({"codes": block_codes(packed, self.spec), "scales": self._stored(scale, "scale")}, 0)

    def tile_reading(self, dim: int) -> TileReading | None:
        return TileReading("table4", table=tuple(map(float, LEVELS)), basis=byte_order)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = split_halves(block_bytes(streams, HALF)).to(torch.int64)
        levels = torch.tensor(LEVELS, dtype=dtype, device=codes.device)
        return (levels[codes] * parameter(streams, "scales", dtype)).flatten(-2)


def _nearest_level(scaled: Tensor, levels: Tensor) -> Tensor:
    """Index of the nearest level; the upper one of a tie."""
    above = torch.bucketize(scaled.contiguous(), levels, right=True).clamp(1, len(LEVELS) - 1)
    nearer_below = scaled - levels[above - 1] < levels[above] - scaled
    return torch.where(nearer_below, above - 1, above)


def _fitted_scale(blocks: Tensor, chosen: Tensor) -> Tensor:
    """Least squares with weights x²; zero where all weights underflow."""
    products = blocks * blocks * chosen * blocks
    squares = blocks * blocks * chosen * chosen
    top, bottom = products[..., :1].clone(), squares[..., :1].clone()
    for place in range(1, BLOCK_SIZE):
        top += products[..., place : place + 1]
        bottom += squares[..., place : place + 1]
    return torch.where(bottom > 0, top / bottom, torch.zeros_like(top))
