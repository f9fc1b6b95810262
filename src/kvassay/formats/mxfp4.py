"""MXFP4 and its relatives: E2M1 elements, one scale for each group of channels of a token.

scale by its stored type, with m = max|x| of the group:
- e8m0 (MXFP4 at group 32): 2^(⌊log2 m⌋ − 2), or with exponent=ceil the smallest power of two with m ≤ 6 · scale;
- f16, f32: m / 6, f16 rounded up; e4m3: to nearest, between 2^−9 and 448.
code = E2M1(x / scale), x̂ = code · scale. scales `[batch, heads, tokens, dim / group]`. A zero group has scale one.

With exponent=floor, magnitudes of the group between 6 and 8 scales come down to 6: that is the specification's own
conversion and no fault of the data, so it is not counted as clipping. What an e4m3 scale of 448 cannot reach is.
Error bound: |x − x̂| ≤ scale for |x| ≤ 7 · scale, else 2 · scale (floor), plus what rounding the scale cuts off.

Source: OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6.3. group16 with exponent=ceil has the scales
of SGLang's fp4_e2m1 cache (`KVFP4QuantizeUtil`), which takes values halfway between two codes to the smaller one and
not the even one. Conformance of elements and scales is tested against `ml_dtypes`.
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
    computing_dtype,
    require_finite,
    stored_outward,
)
from kvassay.formats.e2m1 import (
    LARGEST,
    count_saturated,
    decode_blocks,
    e4m3_scale,
    nearest_codes,
    pack_blocks,
)
from kvassay.formats.e8m0 import shared_exponent_scale
from kvassay.formats.grouping import group_values, store_parameters


class MicroscaledQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._rule = str(spec.option("exponent"))
        if self._rule != "floor" and spec.scale_dtype != "float8_e8m0fnu":
            raise FormatError(f"exponent={self._rule} is a rule for e8m0 scales; add scale=e8m0 or drop it")

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        grouped, axes = group_values(values.to(computing_dtype(values)), self.spec)
        magnitude = grouped.abs().amax(axes, keepdim=True)
        scale = self._scale(magnitude)
        scaled = grouped / scale.to(grouped.dtype)
        streams = {
            "codes": pack_blocks(nearest_codes(scaled), self.spec),
            "scales": store_parameters(scale, self.spec),
        }
        saturates = self._scale_dtype == "float8_e4m3fn"
        return Encoded(streams, count_saturated(scaled, magnitude / LARGEST) if saturates else 0)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        return decode_blocks(streams, self.spec, dtype)

    def _scale(self, magnitude: Tensor) -> Tensor:
        match self._scale_dtype:
            case "float8_e8m0fnu":
                return shared_exponent_scale(magnitude, LARGEST, self._rule)
            case "float8_e4m3fn":
                return e4m3_scale(magnitude / LARGEST)
            case _:
                scale = stored_outward(magnitude / LARGEST, self._scale_dtype, "scale", up=True)
                return torch.where(scale == 0, torch.ones_like(scale), scale)
