"""What every codec offers: calibrate, encode to packed streams, decode from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.errors import CalibrationError, NonFiniteError, RangeError
from kvassay.formats.calibration import MIN_MAX, CalibrationPolicy
from kvassay.formats.tile_reading import TileReading

Streams = dict[str, Tensor]
"""Stored arrays by name, each `[batch, heads, blocks, *block_shape]` as `core.layout.streams` declares them."""


class Calibration(NamedTuple):
    """The static arrays of one side of one layer, and where they came from."""

    parameters: Mapping[str, Tensor]
    """By name as `core.layout.static_streams` declares them: `[heads, *block_shape]`."""
    source: str
    """Never empty, for example `calibrated(min-max, n=512 tokens)`."""


class Encoded(NamedTuple):
    """Packed streams of some tokens, and how many finite values saturated on the way."""

    streams: Streams
    clipped_values: int


class Quantizer(ABC):
    """One method bound to a spec. Stateless: equal inputs give equal bytes, in any chunking by whole blocks."""

    def __init__(self, spec: QuantSpec) -> None:
        self.spec = spec

    @property
    def scale_source(self) -> str:
        """Where scales come from when no calibration is given: `dynamic` (from the values), `unit` or `none`."""
        return "dynamic"

    @abstractmethod
    def encode(
        self, values: Float[Tensor, "batch kv_heads tokens dim"], calibration: Calibration | None = None
    ) -> Encoded:
        """Pack whole blocks of tokens. Raises NonFiniteError, RangeError or CalibrationError."""

    @abstractmethod
    def decode(
        self, streams: Streams, dtype: torch.dtype = torch.float32, calibration: Calibration | None = None
    ) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """Values of the packed streams, computed in `dtype`."""

    def tile_reading(self, dim: int) -> TileReading | None:
        """How kernels read codes of `dim` channels in place; None where they must be decoded."""
        return None

    def calibrate(
        self, values: Float[Tensor, "batch kv_heads tokens dim"], policy: CalibrationPolicy = MIN_MAX
    ) -> Calibration:
        """Static arrays from sample values, scales by `policy`; only specs that need calibration have one."""
        raise CalibrationError(
            f"method {self.spec.method} with granularity {self.spec.granularity.value} needs no calibration"
        )


def require_finite(values: Tensor, what: str = "values") -> None:
    """Raise NonFiniteError with the count and first place of NaN and infinity."""
    plain = values.detach()
    if not values.numel() or all(isfinite(extreme.item()) for extreme in (plain.amin(), plain.amax())):
        return  # the extremes take no array, and a NaN is passed on to both
    num_nan = int(torch.isnan(values).sum())
    num_inf = int(torch.isinf(values).sum())
    place = torch.nonzero(~torch.isfinite(values))[0].tolist()
    raise NonFiniteError(
        f"{what} hold {num_nan} NaN and {num_inf} infinite of {values.numel()} elements, first at "
        f"[row, head, token, channel] = {place}; a cache of finite values is expected: check the model's activations"
    )


def stored(parameter: Tensor, scale_dtype: str, what: str) -> Tensor:
    """Round a scale or minimum to its stored dtype; raise RangeError where it overflows."""
    rounded = parameter.to(getattr(torch, scale_dtype))
    if not bool(torch.isfinite(rounded).all()):
        largest = float(parameter.abs().max())
        wider = "a format with float32 scales, such as int8:token-head or scale=f32"
        way_out = "scale the values down" if scale_dtype == "float32" else f"use {wider}"
        raise RangeError(f"a {what} of {largest:.4g} does not fit {scale_dtype}; {way_out}")
    return rounded


def stored_outward(parameter: Tensor, scale_dtype: str, what: str, *, up: bool) -> Tensor:
    """Like `stored`, rounded up (or down) where the stored dtype has 16 bits.

    A range that is rounded outward loses no value to saturation. float32 keeps round-to-nearest: its error is far
    below half a step of 8-bit codes.
    """
    rounded = stored(parameter, scale_dtype, what)
    if rounded.element_size() != 2:
        return rounded
    missed = rounded.to(parameter.dtype) < parameter if up else rounded.to(parameter.dtype) > parameter
    if not bool(missed.any()):
        return rounded
    # Neighbours in 16-bit floats are neighbours in their bits; the sign bit turns the direction, and zero has two.
    bits = rounded.view(torch.int16)
    away = torch.where(
        rounded == 0, bits.new_full((), 1 if up else -0x7FFF), torch.where((bits >= 0) == up, bits + 1, bits - 1)
    )
    outward = torch.where(missed, away, bits).view(rounded.dtype)
    return stored(outward, scale_dtype, what)


def decode_as(
    codec: Quantizer, streams: Streams, dtype: torch.dtype, calibration: Calibration | None = None
) -> Float[Tensor, "batch kv_heads tokens dim"]:
    """Decoded values for a model of `dtype`: computed in float32 (float64 for float64), then cast.

    16-bit arithmetic would overflow in codes x scale where the value itself fits, and round twice. What decodes
    beyond the range of `dtype` becomes its largest value, never infinity.
    """
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    return cast_within(codec.decode(streams, computing, calibration), dtype)


def cast_within(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` in `dtype`; what lies beyond its range becomes its largest value."""
    if dtype == values.dtype:
        return values
    largest = torch.finfo(dtype).max
    return values.clamp(-largest, largest).to(dtype)


def static_parameters(spec: QuantSpec, calibration: Calibration | None) -> Mapping[str, Tensor]:
    """The static arrays a codec was given; raises CalibrationError where there are none."""
    if calibration is None:
        raise CalibrationError(
            f"{spec.method}{spec.num_bits} with granularity {spec.granularity.value} has no calibration; "
            "calibrate it on sample keys and values, or use a token-head or group format"
        )
    return calibration.parameters


def computing_dtype(values: Tensor) -> torch.dtype:
    """Codes are computed in float64 for float64 input, else in float32."""
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def count_changed(before: Tensor, after: Tensor) -> int:
    """How many elements a clamp changed."""
    return int(torch.count_nonzero(before != after))
