"""Plain floats: float32, float16 or bfloat16, rounded to nearest even by the cast."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from kvassay.errors import RangeError
from kvassay.formats.base import Calibration, Encoded, Quantizer, Streams, require_finite
from kvassay.formats.grouping import block_codes, unblock_codes
from kvassay.formats.tile_reading import TileReading


class FloatQuantizer(Quantizer):
    @property
    def scale_source(self) -> str:
        return "none"

    def encode(self, values: Tensor, calibration: Calibration | None = None) -> Encoded:
        require_finite(values)
        return Encoded({"codes": block_codes(round_to(values, self.spec.code_dtype), self.spec)}, 0)

    def tile_reading(self, dim: int) -> TileReading | None:
        return TileReading(self.spec.code_dtype)  # pyright: ignore[reportArgumentType]

    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Tensor:
        return unblock_codes(streams["codes"]).to(dtype)


def round_to(values: Tensor, dtype: str) -> Tensor:
    """Cast finite values to a float dtype by name; raise RangeError where one overflows."""
    require_fits(values, dtype)
    return values.to(getattr(torch, dtype))


def require_fits(values: Tensor, dtype: str) -> None:
    """Raise RangeError where a finite value overflows in a float dtype. Rounding is monotone: the extremes tell."""
    target = getattr(torch, dtype)
    if values.dtype == target or not values.numel():
        return
    plain = values.detach()
    largest = max(-plain.amin().item(), plain.amax().item())
    if not isfinite(float(torch.tensor(largest, dtype=values.dtype).to(target))):
        raise RangeError(
            f"values up to {largest:.4g} do not fit {dtype} (largest {torch.finfo(target).max:.4g}); use exact=bf16 or "
            "exact=f32"
        )
