"""ggml q8_0: 32 signed codes of 8 bit and a float16 scale, 34 bytes a block (8.5 bits a value).

d = max|x| / 127; q = round-half-away(x / d); x̂ = q · d. Error bound: d/2, and 127 · ulp(d)/2 for the stored scale.

Source: ggml-quants, `quantize_row_q8_0_ref` and `dequantize_row_q8_0`; bit-exact with the `gguf` package (tests).
Deviation: values that float16 scales cannot hold are refused where ggml stores infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.formats.base import Calibration, Encoded, Streams
from kvassay.formats.ggml_blocks import BLOCK_SIZE, GgmlQuantizer, block_bytes, inverse, parameter
from kvassay.formats.grouping import block_codes
from kvassay.formats.tile_reading import TileReading


class Q8Quantizer(GgmlQuantizer):
    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        scaled = blocks * inverse(scale)
        # C's roundf rounds halves away from zero, torch.round to even.
        rounded = torch.sign(scaled) * torch.floor(scaled.abs() + 0.5)
        codes = block_codes(rounded.to(torch.int8).flatten(-2), self.spec)
        return Encoded({"codes": codes, "scales": self._stored(scale, "scale")}, 0)

    def tile_reading(self, dim: int) -> TileReading | None:
        return TileReading("int8")

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = block_bytes(streams, BLOCK_SIZE).to(dtype)
        return (codes * parameter(streams, "scales", dtype)).flatten(-2)
