"""ggml blocks of 32 values with one float16 scale: q8_0 and q4_0, bit-exact with ggml's reference quantizers.

q8_0: d = max|x| / 127; q = round-half-away(x / d); 34 bytes a block.
q4_0: d = m / −8 with m the value of largest magnitude, sign kept; q = ⌊x / d + 8.5⌋ clipped to 15; code i stands in the
low half and code i + 16 in the high half of byte i; 18 bytes a block.
Codes are computed with the float32 scale and decoded with the stored float16 one, as ggml does; x̂ = (q − 8) · d.
So the codes differ from those of kvassay's own `int` method at equal bits, and the two do not read each other's bytes.

Source: ggml's block formats (ggml-quants, `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`); conformance is tested
against the `gguf` package.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.errors import FormatError
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    count_changed,
    require_finite,
    stored,
)
from kvassay.formats.grouping import block_codes, unblock_codes

BLOCK_SIZE = 32


class _GgmlQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.group_size != BLOCK_SIZE:
            raise FormatError(f"{spec.method} has blocks of {BLOCK_SIZE} values, found {spec.group_size}")

    @staticmethod
    def _blocks(values: Tensor) -> Tensor:
        require_finite(values)
        return values.to(torch.float32).unflatten(-1, (-1, BLOCK_SIZE))

    @staticmethod
    def _inverse(scale: Tensor) -> Tensor:
        return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)

    @staticmethod
    def _scaled(codes: Tensor, streams: Streams, dtype: torch.dtype) -> Tensor:
        scales = streams["scales"].to(dtype).unsqueeze(-1)
        return (codes.unflatten(-1, (-1, BLOCK_SIZE)) * scales).flatten(-2)


class Q8Quantizer(_GgmlQuantizer):
    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        scaled = blocks * self._inverse(scale)
        # C's roundf rounds halves away from zero, torch.round to even.
        rounded = torch.sign(scaled) * torch.floor(scaled.abs() + 0.5)
        codes = rounded.to(torch.int8).flatten(-2)
        scales = stored(scale, "float16", "scale").squeeze(-1)
        return Encoded({"codes": block_codes(codes, self.spec), "scales": scales}, 0)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        return self._scaled(unblock_codes(streams["codes"]).to(dtype), streams, dtype)


class Q4Quantizer(_GgmlQuantizer):
    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        blocks = self._blocks(values)
        largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
        scale = largest / -8
        raw = torch.floor(blocks * self._inverse(scale) + 8.5)
        codes = raw.clamp(0, 15)
        # The value opposite to the largest one lands on 16 and is clipped by design: half a step, not a fault.
        clipped_values = count_changed(raw.clamp(0, 16), raw)
        halves = codes.to(torch.uint8).unflatten(-1, (2, BLOCK_SIZE // 2))
        packed = (halves[..., 0, :] | halves[..., 1, :] << 4).flatten(-2)
        scales = stored(scale, "float16", "scale").squeeze(-1)
        return Encoded({"codes": block_codes(packed, self.spec), "scales": scales}, clipped_values)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        packed = unblock_codes(streams["codes"]).unflatten(-1, (-1, BLOCK_SIZE // 2))
        codes = torch.stack((packed & 15, packed >> 4), dim=-2).flatten(-3).to(dtype) - 8
        return self._scaled(codes, streams, dtype)


def to_ggml_rows(streams: Streams) -> Tensor:
    """ggml's own bytes: for each block its float16 scale, then its codes. `[batch, heads, tokens, nbytes]` uint8."""
    codes = unblock_codes(streams["codes"]).view(torch.uint8)
    scales = streams["scales"].contiguous().view(torch.uint8).unflatten(-1, (-1, 2))
    return torch.cat((scales, codes.unflatten(-1, (scales.shape[-2], -1))), dim=-1).flatten(-2)
