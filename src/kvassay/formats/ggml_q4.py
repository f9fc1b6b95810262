"""ggml q4_0 and q4_1: 32 codes of 4 bit.

q4_0 (18 bytes a block, 4.5 bits): d = m / −8 with m the value of largest magnitude, sign kept;
q = ⌊x / d + 8.5⌋ clipped to 15; x̂ = (q − 8) · d.
q4_1 (20 bytes, 5.0 bits): d = (max − min) / 15; q = ⌊(x − min) / d + 0.5⌋ clipped to 15; x̂ = q · d + min.
Error bound: d/2 and the rounding of d and min to float16; q4_0 errs by up to d on the side opposite to m.

Source: ggml-quants, `quantize_row_q4_0_ref`, `quantize_row_q4_1_ref`; bit-exact with the `gguf` package (tests).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.formats.base import Calibration, Encoded, Streams
from kvassay.formats.ggml_blocks import (
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


class Q4Quantizer(GgmlQuantizer):
    """q4_0, and q4_1 where the spec is asymmetric."""

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        if self.spec.symmetric:
            scale = largest_signed(blocks) / -8
            # The value opposite to the largest one lands on 16 and is clipped by design: half a step, not a fault.
            codes = torch.floor(blocks * inverse(scale) + 8.5).clamp(0, 15)
            parameters = {"scales": self._stored(scale, "scale")}
        else:
            minimum = blocks.amin(-1, keepdim=True)
            scale = (blocks.amax(-1, keepdim=True) - minimum) / 15
            codes = torch.floor((blocks - minimum) * inverse(scale) + 0.5).clamp(0, 15)
            parameters = {"scales": self._stored(scale, "scale"), "minimums": self._stored(minimum, "minimum")}
        packed = join_halves(codes.to(torch.uint8)).flatten(-2)
        return Encoded({"codes": block_codes(packed, self.spec), **parameters}, 0)

    def tile_reading(self, dim: int) -> TileReading | None:
        return TileReading("uint4", offset=8.0 if self.spec.symmetric else 0.0, basis=byte_order)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = split_halves(block_bytes(streams, HALF)).to(dtype)
        scale = parameter(streams, "scales", dtype)
        if self.spec.symmetric:
            return ((codes - 8) * scale).flatten(-2)
        return (codes * scale + parameter(streams, "minimums", dtype)).flatten(-2)
