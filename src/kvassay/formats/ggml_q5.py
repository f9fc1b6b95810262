"""ggml q5_0 and q5_1: 32 codes of 5 bit. Bit i of a little-endian 32-bit word is the fifth bit of code i.

q5_0 (22 bytes a block, 5.5 bits): d = m / −16 with m the value of largest magnitude, sign kept;
q = ⌊x / d + 16.5⌋ clipped to 31; x̂ = (q − 16) · d.
q5_1 (24 bytes, 6.0 bits): d = (max − min) / 31; q = ⌊(x − min) / d + 0.5⌋ clipped to 31; x̂ = q · d + min.
Error bound: d/2 and the rounding of d and min to float16; q5_0 errs by up to d on the side opposite to m.

Source: ggml-quants, `quantize_row_q5_0_ref`, `quantize_row_q5_1_ref`; bit-exact with the `gguf` package (tests).
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
    inverse,
    join_halves,
    largest_signed,
    parameter,
    split_halves,
)
from kvassay.formats.grouping import block_codes
from kvassay.formats.packing import pack_codes, unpack_codes

HIGH_BYTES = BLOCK_SIZE // 8


class Q5Quantizer(GgmlQuantizer):
    """q5_0, and q5_1 where the spec is asymmetric."""

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        if self.spec.symmetric:
            scale = largest_signed(blocks) / -16
            codes = torch.floor(blocks * inverse(scale) + 16.5).clamp(0, 31).to(torch.uint8)
            parameters = {"scales": self._stored(scale, "scale")}
        else:
            minimum = blocks.amin(-1, keepdim=True)
            scale = (blocks.amax(-1, keepdim=True) - minimum) / 31
            codes = torch.floor((blocks - minimum) * inverse(scale) + 0.5).clamp(0, 31).to(torch.uint8)
            parameters = {"scales": self._stored(scale, "scale"), "minimums": self._stored(minimum, "minimum")}
        packed = torch.cat((pack_codes(codes >> 4, 1), join_halves(codes & 15)), dim=-1).flatten(-2)
        return Encoded({"codes": block_codes(packed, self.spec), **parameters}, 0)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        high, low = block_bytes(streams, HIGH_BYTES + HALF).split((HIGH_BYTES, HALF), dim=-1)
        codes = (split_halves(low) | unpack_codes(high, 1) << 4).to(dtype)
        scale = parameter(streams, "scales", dtype)
        if self.spec.symmetric:
            return ((codes - 16) * scale).flatten(-2)
        return (codes * scale + parameter(streams, "minimums", dtype)).flatten(-2)
