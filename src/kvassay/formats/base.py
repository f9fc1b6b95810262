"""What every codec offers: calibrate, encode to packed streams, decode from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.errors import CalibrationError, NonFiniteError, RangeError
from kvassay.formats.calibration import MIN_MAX, CalibrationPolicy

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

    def calibrate(
        self, values: Float[Tensor, "batch kv_heads tokens dim"], policy: CalibrationPolicy = MIN_MAX
    ) -> Calibration:
        """Static arrays from sample values, scales by `policy`; only specs that need calibration have one."""
        raise CalibrationError(
            f"method {self.spec.method} with granularity {self.spec.granularity.value} needs no calibration"
        )


def require_finite(values: Tensor, what: str = "values") -> None:
    """Raise NonFiniteError with the count and first place of NaN and infinity."""
    if bool(torch.isfinite(values).all()):
        return
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
        raise RangeError(f"a {what} of {largest:.4g} does not fit {scale_dtype}; use the modifier scale=f32")
    return rounded


def usable_scale(scale: Tensor, magnitude: Tensor, reach: float) -> Tensor:
    """A stored scale that serves its group: one where it underflowed, the next larger where it falls short.

    `reach` is what the codes reach, in scales, before they saturate. Only a subnormal scale falls short of
    `magnitude`: rounding it down can cost a third of it, and the group's largest values would then count as clipped.
    """
    bits = {4: torch.int32, 2: torch.int16}[scale.element_size()]
    short = magnitude > reach * scale.to(magnitude.dtype)
    raised = torch.where(short, (scale.view(bits) + 1).view(scale.dtype), scale)
    return torch.where(scale == 0, torch.ones_like(scale), raised)


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
