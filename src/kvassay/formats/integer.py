"""Uniform affine integer quantizer, 1 to 8 bit, at every granularity.

Symmetric: scale = max|x| / (2^(b−1) − 1); q = round-half-even(x / scale), clipped to ±(2^(b−1) − 1), so the most
negative code is never used; x̂ = q · scale. Below 8 bit the code is stored with an offset of 2^(b−1).
Asymmetric: minimum = min x; scale = (max x − minimum) / (2^b − 1); q = round((x − minimum) / scale);
x̂ = q · scale + minimum. Storing scale and minimum (and not a zero point) keeps constant and tiny groups finite.

Scale and minimum are rounded to their stored dtype *before* the codes are computed, so that rounding errs against the
numbers the decoder will use; in 16 bits the scale is rounded up and the minimum down, so that no value of the group
saturates. A zero group uses scale one. Error bound of a dynamic scale: |x − x̂| <= scale/2, the stored scale.

Sources: 8-bit symmetric as in the attention-error experiment (R67 to R71); asymmetric per channel and per token as in
KIVI (Liu et al. 2024, arXiv:2402.02750, section 3). Deviation from KIVI's code: the range is measured from the *stored*
minimum, so that the maximum is met after the minimum was rounded.
"""

from __future__ import annotations

from typing import NamedTuple

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
    count_changed,
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
from kvassay.formats.grouping import (
    block_codes,
    group_values,
    load_parameters,
    store_parameters,
    unblock_codes,
    ungroup_values,
)
from kvassay.formats.packing import pack_codes, unpack_codes
from kvassay.formats.tile_reading import TileReading, unsigned_code


class _Grid(NamedTuple):
    """Stored scale and minimum, in a shape that broadcasts over the grouped values."""

    scale: Tensor
    minimum: Tensor | None


class IntegerQuantizer(Quantizer):
    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if not 1 <= spec.num_bits <= 8:
            raise FormatError(f"int takes 1 to 8 bits, found {spec.num_bits}")
        if spec.num_bits == 1 and spec.symmetric:
            raise FormatError("a symmetric grid of 1 bit has one level, zero; use int1 without /sym")
        assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
        self._scale_dtype: str = spec.scale_dtype
        self._largest_code = (1 << spec.num_bits - 1) - 1 if spec.symmetric else (1 << spec.num_bits) - 1
        self._offset = (1 << spec.num_bits - 1) if spec.symmetric and spec.code_dtype == "uint8" else 0

    @property
    def scale_source(self) -> str:
        return "static" if self.spec.is_static else "dynamic"

    def calibrate(self, values: Tensor, policy: CalibrationPolicy = MIN_MAX) -> Calibration:
        if not self.spec.is_static:
            return super().calibrate(values, policy)
        require_finite(values)
        grouped, axes = group_values(values.to(computing_dtype(values)), self.spec)

        def squared_error(candidate: Range) -> Tensor:
            grid = self._grid(candidate)
            codes = self._round(grouped, grid)[0].to(grouped.dtype).sub_(self._offset)
            return sum_of_squares(self._on_grid(codes, grid, grouped.dtype) - grouped, axes)

        fitted = fit_range(grouped, axes, policy, symmetric=self.spec.symmetric, squared_error=squared_error)
        grid = self._grid(fitted)
        parameters = {"scale": store_parameters(grid.scale, self.spec)}
        if grid.minimum is not None:
            parameters["minimum"] = store_parameters(grid.minimum, self.spec)
        return Calibration(parameters, calibration_source(values, policy.text, [parameters["scale"]]))

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        grouped, axes = group_values(values.to(computing_dtype(values)), self.spec)
        grid = self._static_grid(calibration) if self.spec.is_static else self._fit(grouped, axes)
        codes, clipped_values = self._round(grouped, grid)
        rows = ungroup_values(codes, self.spec)
        packed = rows if self.spec.code_dtype == "int8" else pack_codes(rows, self.spec.num_bits)
        streams = {"codes": block_codes(packed, self.spec)}
        if not self.spec.is_static:
            streams["scales"] = store_parameters(grid.scale, self.spec)
            if grid.minimum is not None:
                streams["minimums"] = store_parameters(grid.minimum, self.spec)
        return Encoded(streams, clipped_values)

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        packed = unblock_codes(streams["codes"])
        rows = packed if self.spec.code_dtype == "int8" else unpack_codes(packed, self.spec.num_bits)
        codes = rows.to(dtype)
        if self._offset:
            codes -= self._offset
        grouped, _ = group_values(codes, self.spec)
        grid = self._static_grid(calibration) if self.spec.is_static else self._stored_grid(streams)
        return ungroup_values(self._on_grid(grouped, grid, dtype), self.spec)

    def tile_reading(self, dim: int) -> TileReading | None:
        code = "int8" if self.spec.code_dtype == "int8" else unsigned_code(self.spec.num_bits)
        return None if code is None else TileReading(code, offset=self._offset)

    @staticmethod
    def _on_grid(codes: Tensor, grid: _Grid, dtype: torch.dtype) -> Tensor:
        """Values of signed codes, in their place."""
        values = codes.mul_(grid.scale.to(dtype))
        if grid.minimum is not None:
            values += grid.minimum.to(dtype)
        return values

    def _fit(self, grouped: Tensor, axes: tuple[int, ...]) -> _Grid:
        high = (grouped.abs() if self.spec.symmetric else grouped).amax(axes, keepdim=True)
        return self._grid(Range(-high if self.spec.symmetric else grouped.amin(axes, keepdim=True), high))

    def _grid(self, fitted: Range) -> _Grid:
        if self.spec.symmetric:
            return _Grid(self._scale(fitted.high), None)
        low = fitted.low + 0.0  # zero has one sign, whichever of two zeros was found first
        minimum = stored_outward(low, self._scale_dtype, "minimum", up=False)
        value_range = fitted.high - minimum.to(fitted.high.dtype)
        return _Grid(self._scale(value_range.clamp_min(0)), minimum)

    def _scale(self, value_range: Tensor) -> Tensor:
        scale = stored_outward(value_range / self._largest_code, self._scale_dtype, "scale", up=True)
        return torch.where(scale == 0, torch.ones_like(scale), scale)

    def _round(self, grouped: Tensor, grid: _Grid) -> tuple[Tensor, int]:
        centred = grouped if grid.minimum is None else grouped - grid.minimum.to(grouped.dtype)
        rounded = (centred / grid.scale.to(grouped.dtype)).round_()
        del centred
        lowest = -self._largest_code if self.spec.symmetric else 0
        codes = rounded.clamp(lowest, self._largest_code)
        clipped_values = count_changed(rounded, codes)
        dtype = torch.int8 if self.spec.code_dtype == "int8" else torch.uint8
        return codes.add_(self._offset).to(dtype), clipped_values

    def _stored_grid(self, streams: Streams) -> _Grid:
        minimums = streams.get("minimums")
        return _Grid(
            load_parameters(streams["scales"], self.spec),
            None if minimums is None else load_parameters(minimums, self.spec),
        )

    def _static_grid(self, calibration: Calibration | None) -> _Grid:
        parameters = static_parameters(self.spec, calibration)
        return _Grid(parameters["scale"], parameters.get("minimum"))
