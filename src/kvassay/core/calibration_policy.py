"""How static scales are chosen from sample values: the policies by name. `formats.calibration` computes them. No torch.

For the range [low, high] that the codes of a group then cover:
- min-max: the smallest and the largest sample value. Clips nothing of the sample.
- percentile p: p percent of the sample lie inside. By order statistics (nearest rank), so the range ends at sample
  values. A symmetric grid ranks magnitudes; an asymmetric one leaves (100 − p)/2 percent out on each side.
- mse: of the min-max range, shrunk about its centre (zero for a symmetric grid) by each of `SHRINK_FACTORS`, the one of
  the least squared error of the sample through the codec itself; the widest of equals.

Percentile and least-error ranges are those of post-training quantization of activations: Migacz 2017 (8-bit inference
with TensorRT, calibration); Nagel et al. 2021 (arXiv:2106.08295, section 3.1, range setting).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvassay.errors import CalibrationError

SHRINK_FACTORS = tuple(step / 50 for step in range(50, 9, -1))
"""1.00, 0.98, ... 0.20 of the min-max range. Best for half a million Gaussian values: 0.34 at 2 bit, 0.86 at 8 bit."""


@dataclass(frozen=True)
class MinMax:
    """The whole range of the sample."""

    @property
    def text(self) -> str:
        return "min-max"


@dataclass(frozen=True)
class Percentile:
    """The range that holds `percent` of the sample."""

    percent: float

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            raise CalibrationError(f"a percentile lies in (0, 100], found {self.percent}; use for example 99.9")

    @property
    def text(self) -> str:
        return f"percentile {self.percent:.12g}"


@dataclass(frozen=True)
class LeastError:
    """The range of the least squared error among `SHRINK_FACTORS` of the whole one."""

    @property
    def text(self) -> str:
        return "mse"


CalibrationPolicy = MinMax | Percentile | LeastError

MIN_MAX = MinMax()


def parse_policy(text: str) -> CalibrationPolicy:
    """Read `min-max`, `mse` (also `least-error`) or `percentile P`; raises CalibrationError naming these."""
    if text == "min-max":
        return MIN_MAX
    if text in ("mse", "least-error"):
        return LeastError()
    if match := re.fullmatch(r"percentile[ =]([0-9]{1,3}(?:\.[0-9]{1,9})?)", text):
        return Percentile(float(match[1]))
    shown = repr(text) if len(text) <= 80 else repr(text[:77]) + "..."
    raise CalibrationError(
        f"calibration policy {shown} is unknown; use min-max, mse (the least squared error) or for example "
        "'percentile 99.9'"
    )


def as_policy(policy: str | CalibrationPolicy) -> CalibrationPolicy:
    """A policy as it is, or by its name."""
    return parse_policy(policy) if isinstance(policy, str) else policy
