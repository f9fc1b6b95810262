"""float8 e4m3fn (OCP FP8, 1-4-3, largest 448), by plain cast (scale 1) or with an absmax scale.

scale = max|x| / 448; code = e4m3fn(x / scale), round to nearest even; x̂ = code · scale. Without a granularity the
scale is one, as engines do when a checkpoint carries no scales; values beyond ±448 then saturate and are counted.
A zero group, and one whose scale underflows, uses scale one.

Source: Micikevicius et al. 2022 (arXiv:2209.05433), section 3; per-token-head scales as vLLM's fp8_per_token_head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import FormatError
from kvassay.formats.base import (
    Calibration,
    Encoded,
    Quantizer,
    Streams,
    computing_dtype,
    count_changed,
    require_finite,
    static_parameters,
    stored,
)
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)

LARGEST = 448.0


class Float8Quantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.code_dtype != "float8_e4m3fn":
            raise FormatError(f"float8 stores float8_e4m3fn, found {spec.code_dtype}")

    @property
    def scale_source(self) -> str:
        if self.spec.is_static:
            return "static"
        return "unit" if self.spec.granularity is Granularity.NONE else "dynamic"

    def calibrate(self, values: Tensor) -> Calibration:
        if not self.spec.is_static:
            return super().calibrate(values)
        require_finite(values)
        scale = self._scale(*group_values(values.to(computing_dtype(values)), self.spec))
        source = f"calibrated(n={values.shape[0] * values.shape[2]} tokens)"
        return Calibration({"scale": store_parameters(scale, self.spec)}, source)

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
            scale = self._scale(grouped, axes)
        codes, clipped_values = self._cast(grouped / scale.to(grouped.dtype))
        streams = {"codes": block_codes(ungroup_values(codes, self.spec), self.spec)}
        if not self.spec.is_static:
            streams["scales"] = store_parameters(scale, self.spec)
        return Encoded(streams, clipped_values)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        values = unblock_codes(streams["codes"]).to(dtype)
        if self.spec.granularity is Granularity.NONE:
            return values
        grouped, _ = group_values(values, self.spec)
        if self.spec.is_static:
            scale = static_parameters(self.spec, calibration)["scale"]
        else:
            scale = load_parameters(streams["scales"], self.spec)
        return ungroup_values(grouped * scale.to(dtype), self.spec)

    def _scale(self, grouped: Tensor, axes: tuple[int, ...]) -> Tensor:
        assert self.spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        scale = stored(grouped.abs().amax(axes, keepdim=True) / LARGEST, self.spec.scale_dtype, "scale")
        return torch.where(scale == 0, torch.ones_like(scale), scale)

    @staticmethod
    def _cast(values: Tensor) -> tuple[Tensor, int]:
        """Clamp first: torch's cast turns values beyond the range into NaN. A value that rounds to 448 is no loss."""
        inside = values.clamp(-LARGEST, LARGEST)
        # Half a step above the largest value still rounds to it.
        clipped_values = count_changed(values.clamp(-LARGEST - 16, LARGEST + 16), values)
        return inside.to(torch.float8_e4m3fn), clipped_values
