"""NVFP4: E2M1 elements in blocks of 16 channels, one e4m3 scale a block, one float32 scale S a side of a layer.

scale = e4m3(max|x| / (6 · S)), code = E2M1(x / (scale · S)), x̂ = code · (scale · S). scales
`[batch, heads, tokens, dim / 16]`.

S: `global=unit` is S = 1, and block scales lie between 2^−9 and 448, so blocks below 6 · 2^−6 lose precision and those
above 2688 saturate. `global=static` is S = m / (6 · 448) with m from calibration, as ModelOpt exports it; it uses all
of e4m3's range. Values beyond it saturate and are counted. A zero block has scale one.

`four_over_six=1` also tries scale = e4m3(max|x| / (4 · S)) and keeps the one of the lower squared error of the block, 6
where they are equal. Then S = m / (6 · 256), so that the larger scale still fits: Four Over Six (Cook et al. 2025,
arXiv:2512.02010; its `quantize/reference.py` has the constant 256).

Sources: NVIDIA ModelOpt `NVFP4QTensor` (scales, zero blocks). Deviation: ModelOpt lets a block scale below 2^−10 be 0,
here it is 2^−9. Error bound: |x − x̂| ≤ scale · S, plus what rounding the scale cuts off (max|x| / 16 for a normal
scale). Conformance: elements and scales against `ml_dtypes`, codes and packing against `compressed-tensors`; engines'
kernels compute the same with approximate reciprocals, which moves rare codes.
"""

from __future__ import annotations

from typing import NamedTuple

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
    static_parameters,
)
from kvassay.formats.calibration import (
    MIN_MAX,
    CalibrationPolicy,
    Range,
    calibration_source,
    fit_range,
    sum_of_squares,
)
from kvassay.formats.e2m1 import (
    LARGEST,
    code_values,
    count_saturated,
    decode_blocks,
    e4m3_scale,
    nearest_codes,
    pack_blocks,
)
from kvassay.formats.grouping import group_values, store_parameters

FOUR = 4.0
LARGEST_BLOCK_SCALE = 448.0
LARGEST_BLOCK_SCALE_FOUR_OVER_SIX = 256.0
_EVERY_AXIS = (0, 1, 2, 3)


class _Blocks(NamedTuple):
    """Codes and scales of a grouped view, and what an e4m3 scale could not reach."""

    codes: Tensor
    scale: Tensor
    clipped_values: int


class NVFP4Quantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        self._is_calibrated = spec.option("global") == "static"
        self._four_over_six = spec.option("four_over_six") == 1

    @property
    def scale_source(self) -> str:
        return "dynamic, static global" if self._is_calibrated else "dynamic"

    def calibrate(self, values: Tensor, policy: CalibrationPolicy = MIN_MAX) -> Calibration:
        if not self._is_calibrated:
            return super().calibrate(values, policy)
        require_finite(values)
        exact = values.to(computing_dtype(values))

        def squared_error(candidate: Range) -> Tensor:
            scale = self._global_scale(candidate.high)
            grouped, _ = group_values(exact, self.spec)
            return sum_of_squares(self._decoded(self._blocks(grouped, scale), scale) - grouped, (0, 1, 2, 3, 4))[..., 0]

        fitted = fit_range(exact, _EVERY_AXIS, policy, symmetric=True, squared_error=squared_error)
        scale = self._global_scale(fitted.high).squeeze(0)
        return Calibration({"global_scale": scale}, calibration_source(values, policy.text, [scale]))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        grouped, _ = group_values(values.to(computing_dtype(values)), self.spec)
        blocks = self._blocks(grouped, self._given(calibration))
        streams = {
            "codes": pack_blocks(blocks.codes, self.spec),
            "scales": store_parameters(blocks.scale, self.spec),
        }
        return Encoded(streams, blocks.clipped_values)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        return decode_blocks(streams, self.spec, dtype, self._given(calibration))

    def _given(self, calibration: Calibration | None) -> Tensor | None:
        return static_parameters(self.spec, calibration)["global_scale"] if self._is_calibrated else None

    def _global_scale(self, magnitude: Tensor) -> Tensor:
        reach = LARGEST_BLOCK_SCALE_FOUR_OVER_SIX if self._four_over_six else LARGEST_BLOCK_SCALE
        scale = (magnitude / (LARGEST * reach)).to(torch.float32)
        return torch.where(scale == 0, torch.ones_like(scale), scale)

    def _blocks(self, grouped: Tensor, global_scale: Tensor | None) -> _Blocks:
        shared = torch.ones((), dtype=grouped.dtype) if global_scale is None else global_scale.to(grouped.dtype)
        shared = shared.to(grouped.device).reshape(())
        magnitude = grouped.abs().amax(-1, keepdim=True)

        def scaled_to(level: float) -> tuple[Tensor, Tensor, Tensor]:
            ratio = magnitude / (level * shared)
            scale = e4m3_scale(ratio)
            return grouped / (scale.to(grouped.dtype) * shared), scale, ratio

        scaled, scale, ratio = scaled_to(LARGEST)
        if self._four_over_six:
            scaled_four, scale_four, _ = scaled_to(FOUR)
            four = self._error(scaled_four, scale_four) < self._error(scaled, scale)
            scaled = torch.where(four, scaled_four, scaled)
            scale = torch.where(four, scale_four, scale)
        return _Blocks(nearest_codes(scaled), scale, count_saturated(scaled, ratio))

    @staticmethod
    def _error(scaled: Tensor, scale: Tensor) -> Tensor:
        """Squared error of each block, up to the factor S² that both candidates share."""
        rounded = code_values(nearest_codes(scaled), scaled.dtype)
        squares = ((rounded - scaled) * scale.to(scaled.dtype)).square()
        # By halves: the order of additions must not depend on shape or strides.
        while squares.shape[-1] > 1:
            half = squares.shape[-1] // 2
            squares = squares[..., :half] + squares[..., half:]
        return squares

    @staticmethod
    def _decoded(blocks: _Blocks, global_scale: Tensor) -> Tensor:
        scale = blocks.scale.to(torch.float32) * global_scale.reshape(())
        return code_values(blocks.codes, torch.float32) * scale
