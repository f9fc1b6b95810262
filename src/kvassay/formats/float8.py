"""The float8 family: e4m3fn and e5m2 (OCP FP8), e4m3fnuz and e5m2fnuz (no negative zero, bias one higher).

By plain cast (scale 1), with an absmax scale, or with a shared exponent. scale = max|x| / largest; code =
float8(x / scale), round to nearest even; x̂ = code · scale. Largest values: 448, 57344, 240, 57344. Without a
granularity the scale is one, as engines do when a checkpoint carries no scales; values beyond the largest then saturate
and are counted. A zero group, and one whose scale underflows, uses scale one. 16-bit
scales are rounded up.

With scale=e8m0 the scale is the power of two 2^(⌊log2 max|x|⌋ − emax), which at group32 is MXFP8 (OCP MX v1.0, section
6.3); values between the largest and 2^(emax + 1) scales saturate by that rule, and are not counted.

The four types share no bytes: e4m3fnuz bytes read as e4m3fn are half the value, so foreign codes are refused.

Error bound: half a step, |x| · 2^−(mantissa bits + 1) or half the smallest subnormal · scale; the largest values of an
e8m0 group up to 2^(emax + 1) − largest scales.
Sources: Micikevicius et al. 2022 (arXiv:2209.05433), section 3; the fnuz types as in LLVM's APFloat and torch;
per-token-head scales as vLLM's fp8_per_token_head. Tested against torch's own casts and `ml_dtypes`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import ForeignFormatError, FormatError
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    computing_dtype,
    require_finite,
    static_parameters,
    stored_outward,
)
from kvassay.formats.calibration import (
    MIN_MAX,
    CalibrationPolicy,
    Range,
    calibration_source,
    fit_range,
    sum_of_squares,
)
from kvassay.formats.e8m0 import shared_exponent_scale
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)
from kvassay.formats.tile_reading import TileReading


class Element(NamedTuple):
    """One float8 type."""

    largest: float
    halfway: float
    """Halfway from the largest value to the one that would follow."""
    halfway_saturates: bool
    """Where the largest code is odd, halves round away from it."""
    mantissa_bits: int
    smallest_exponent: int
    """Of normal numbers."""


ELEMENTS = {
    "float8_e4m3fn": Element(448.0, 464.0, False, 3, -6),
    "float8_e5m2": Element(57344.0, 61440.0, True, 2, -14),
    "float8_e4m3fnuz": Element(240.0, 248.0, True, 3, -7),
    "float8_e5m2fnuz": Element(57344.0, 61440.0, True, 2, -15),
}


class Float8Quantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.code_dtype not in ELEMENTS:
            raise FormatError(f"float8 stores {', '.join(ELEMENTS)}; found {spec.code_dtype}")
        self._element = ELEMENTS[spec.code_dtype]
        self._code_dtype: torch.dtype = getattr(torch, spec.code_dtype)
        self._shares_exponent = spec.scale_dtype == "float8_e8m0fnu"
        if self._shares_exponent and spec.is_static:
            raise FormatError(
                "an e8m0 scale lets the largest values saturate, which a static scale would count as a fault; drop "
                "scale=e8m0, or use group32"
            )

    @property
    def scale_source(self) -> str:
        if self.spec.is_static:
            return "static"
        return "unit" if self.spec.granularity is Granularity.NONE else "dynamic"

    def calibrate(self, values: Tensor, policy: CalibrationPolicy = MIN_MAX) -> Calibration:
        if not self.spec.is_static:
            return super().calibrate(values, policy)
        require_finite(values)
        grouped, axes = group_values(values.to(computing_dtype(values)), self.spec)

        def squared_error(candidate: Range) -> Tensor:
            scale = self._scale(candidate.high).to(grouped.dtype)
            return sum_of_squares(self._cast(grouped / scale)[0].to(grouped.dtype) * scale - grouped, axes)

        fitted = fit_range(grouped, axes, policy, symmetric=True, squared_error=squared_error)
        scale = store_parameters(self._scale(fitted.high), self.spec)
        return Calibration({"scale": scale}, calibration_source(values, policy.text, [scale]))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        exact = values.to(computing_dtype(values))
        if self.spec.granularity is Granularity.NONE:
            codes, clipped_values = self._cast(exact)
            return Encoded({"codes": block_codes(codes, self.spec)}, clipped_values)
        grouped, axes = group_values(exact, self.spec)
        if self.spec.is_static:
            scale = static_parameters(self.spec, calibration)["scale"]
        else:
            scale = self._scale(grouped.abs().amax(axes, keepdim=True))
        codes, clipped_values = self._cast(grouped / scale.to(grouped.dtype))
        streams = {"codes": block_codes(ungroup_values(codes, self.spec), self.spec)}
        if not self.spec.is_static:
            streams["scales"] = store_parameters(scale, self.spec)
        return Encoded(streams, 0 if self._shares_exponent else clipped_values)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        if streams["codes"].dtype != self._code_dtype:
            raise ForeignFormatError(
                f"codes are {streams['codes'].dtype}, this format stores {self._code_dtype}; decode them with the "
                "format that wrote them"
            )
        # float16 does not hold every power of two of an e8m0 scale.
        computing = torch.float32 if self._shares_exponent and dtype != torch.float64 else dtype
        values = unblock_codes(streams["codes"]).to(computing)
        if self.spec.granularity is Granularity.NONE:
            return values
        grouped, _ = group_values(values, self.spec)
        if self.spec.is_static:
            scale = static_parameters(self.spec, calibration)["scale"]
        else:
            scale = load_parameters(streams["scales"], self.spec)
        return ungroup_values(grouped.mul_(scale.to(computing)), self.spec).to(dtype)

    def tile_reading(self, dim: int) -> TileReading | None:
        if self.spec.code_dtype != "float8_e4m3fn" or self._shares_exponent:
            return None
        return TileReading("float8_e4m3fn")

    def _scale(self, magnitude: Tensor) -> Tensor:
        assert self.spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        if self._shares_exponent:
            return shared_exponent_scale(magnitude, self._element.largest)
        scale = stored_outward(magnitude / self._element.largest, self.spec.scale_dtype, "scale", up=True)
        return torch.where(scale == 0, torch.ones_like(scale), scale)

    def _cast(self, values: Tensor) -> tuple[Tensor, int]:
        """Codes, and how many values saturated: one that rounds to the largest is no loss."""
        element = self._element
        magnitude = values.abs()
        beyond = magnitude >= element.halfway if element.halfway_saturates else magnitude > element.halfway
        # Clamp first: torch's casts turn values beyond the range into infinity or NaN.
        inside = values.clamp(-element.largest, element.largest)
        if inside.dtype == torch.float64:
            inside = _on_grid(inside, element)
        return inside.to(self._code_dtype), int(torch.count_nonzero(beyond))


def _on_grid(values: Tensor, element: Element) -> Tensor:
    """float64 rounded to the element's grid: torch casts float64 by way of float32, which rounds twice."""
    _, exponent = torch.frexp(values)
    # frexp's mantissa lies in [0.5, 1), so the exponent of the leading bit is one less.
    step = (exponent - 1).clamp_min(element.smallest_exponent) - element.mantissa_bits
    power = ((step.to(torch.int64) + 1023) << 52).view(torch.float64)
    return torch.round(values / power) * power
