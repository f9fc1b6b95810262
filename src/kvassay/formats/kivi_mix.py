"""KIVI keys with promoted channels: 2 bit per channel, and 4 bit for the P channels of largest range in a block.

Per channel over `group_size` tokens: minimum z = min x; scale s = (max x − z) / levels; q = round((x − z) / s);
x̂ = q·s + z, with 15 levels for promoted channels and 3 for the others. A promoted code's upper two bits stand among
the 2-bit codes of all channels, its lower two in an array of their own: both have one width, and no bit is padding.
P is fixed by the spec, so the bytes of a block are too; which channels are promoted is stored with the block, rising,
as uint8 (uint16 above 256 channels). Of channels with equal range the lower one is promoted first.

Error bound: s/2 + levels · ulp(s)/2 + ulp(z)/2, as in `formats.integer`.

Sources: KIVI (Liu et al. 2024, arXiv:2402.02750, section 3) for keys per channel; a dynamic boost of some key channels
from 2 to 4 bit, stored as two arrays of 2 bit, as in Kitty (Xia et al. 2025, arXiv:2511.18643).
Deviation from Kitty: channels are ranked by their range in the block, which bounds the error, not by its sensitivity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    computing_dtype,
    require_finite,
    stored,
)
from kvassay.formats.packing import pack_codes, unpack_codes

_BITS = 2
_LEVELS, _PROMOTED_LEVELS = 3, 15


class KiviMixQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._promoted = int(spec.option("promoted"))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        blocks = values.to(computing_dtype(values)).unflatten(2, (-1, self.spec.tokens_per_block))
        minimum = stored(blocks.amin(3, keepdim=True), self._scale_dtype, "minimum")
        centred = blocks - minimum.to(blocks.dtype)
        value_range = centred.amax(3, keepdim=True).clamp_min(0)
        which = (
            torch.sort(value_range, dim=-1, descending=True, stable=True).indices[..., : self._promoted].sort().values
        )
        is_promoted = torch.zeros_like(value_range, dtype=torch.bool).scatter(-1, which, True)
        levels = _levels(is_promoted, blocks.dtype)
        scale = stored(value_range / levels, self._scale_dtype, "scale")
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        # A code beyond the ends comes from the rounding of the minimum or scale, not from saturation.
        codes = torch.minimum(torch.round(centred / scale.to(blocks.dtype)).clamp_min(0), levels).to(torch.uint8)
        of_all = torch.where(is_promoted, codes >> _BITS, codes)
        of_promoted = codes.gather(-1, which.expand(*codes.shape[:-1], -1)) & 3
        index_dtype = torch.uint8 if values.shape[-1] <= 256 else torch.uint16
        return Encoded(
            {
                "codes": pack_codes(of_all, _BITS),
                "promoted_codes": pack_codes(of_promoted, _BITS),
                "promoted_channels": which.squeeze(3).to(index_dtype),
                "scales": scale.squeeze(3),
                "minimums": minimum.squeeze(3),
            },
            0,
        )

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        codes = unpack_codes(streams["codes"], _BITS)
        which = streams["promoted_channels"].to(torch.int64).unsqueeze(3).expand(*codes.shape[:-1], -1)
        whole = codes.gather(-1, which) << _BITS | unpack_codes(streams["promoted_codes"], _BITS)
        codes = codes.scatter(-1, which, whole).to(dtype)
        blocks = codes * streams["scales"].to(dtype).unsqueeze(3) + streams["minimums"].to(dtype).unsqueeze(3)
        return blocks.flatten(2, 3)


def _levels(is_promoted: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.full((), _PROMOTED_LEVELS, dtype=dtype, device=is_promoted.device)
    return torch.where(is_promoted, wide, torch.full_like(wide, _LEVELS))
