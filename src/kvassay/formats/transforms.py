"""Orthogonal steps around any codec: subtract a static mean, rotate, then encode; undone in reverse on decode.

The mean of a channel over tokens carries much of a key's energy and nothing of what tells tokens apart; subtracting it
narrows the range of codes (SageAttention, Zhang et al. 2024, arXiv:2410.02367, section 3.2). Here it is static, from
calibration, so that codes never change once written; it is stored once a layer and added back on decode.
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
    static_parameters,
)
from kvassay.formats.calibration import MIN_MAX, CalibrationPolicy, calibration_source
from kvassay.formats.rotation import rotate, unrotate
from kvassay.formats.tile_reading import TileReading


class Transformed(Quantizer):
    """`spec`'s rotation and mean around the codec that serves the rest of it."""

    def __init__(self, spec: QuantSpec, codec: type[Quantizer]) -> None:
        super().__init__(spec)
        self._inner = codec(spec.model_copy(update={"rotation": None, "mean": False}))

    @property
    def scale_source(self) -> str:
        return self._inner.scale_source

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        return self._inner.encode(self._forward(values, calibration), calibration)

    def tile_reading(self, dim: int) -> TileReading | None:
        inner = self._inner.tile_reading(dim)
        # A mean that is added back is no change of basis.
        if inner is None or self.spec.mean:
            return None
        last = inner.basis
        return inner._replace(
            basis=lambda values: rotate(values, self.spec) if last is None else last(rotate(values, self.spec))
        )

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        values = self._inner.decode(streams, dtype, calibration)
        if self.spec.rotation is not None:
            values = unrotate(values, self.spec)
        if self.spec.mean:
            values = values + static_parameters(self.spec, calibration)["mean"].to(values)
        return values

    def calibrate(self, values: Tensor, policy: CalibrationPolicy = MIN_MAX) -> Calibration:
        require_finite(values)
        parameters: dict[str, Tensor] = {}
        own = Calibration(parameters, calibration_source(values, "mean", ()))
        if self.spec.mean:
            parameters["mean"] = values.to(torch.float64).mean((0, 2)).unsqueeze(1).to(torch.float32)
        if not self._inner.spec.needs_calibration:
            return own
        inner = self._inner.calibrate(self._forward(values, own), policy)
        return Calibration({**inner.parameters, **parameters}, inner.source)

    def _forward(self, values: Tensor, calibration: Calibration | None) -> Tensor:
        moved = values.to(computing_dtype(values))
        if self.spec.mean:
            moved = moved - static_parameters(self.spec, calibration)["mean"].to(moved)
        return moved if self.spec.rotation is None else rotate(moved, self.spec)
