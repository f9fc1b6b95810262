"""Static scales: computed from sample values by a policy (`core.calibration_policy`), and which are refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.core.calibration_policy import (
    MIN_MAX,
    SHRINK_FACTORS,
    CalibrationPolicy,
    LeastError,
    MinMax,
    Percentile,
    as_policy,
    parse_policy,
)
from kvassay.core.geometry import Owner
from kvassay.core.layout import static_streams
from kvassay.core.spec import QuantSpec
from kvassay.errors import CalibrationError

__all__ = [
    "MIN_MAX",
    "SHRINK_FACTORS",
    "CalibrationPolicy",
    "LeastError",
    "MinMax",
    "Percentile",
    "Range",
    "UnitScaleWarning",
    "all_unit",
    "as_policy",
    "calibration_source",
    "fit_range",
    "note_unit_scales",
    "parse_policy",
    "require_calibration",
    "require_usable_scales",
    "sum_of_squares",
]


class UnitScaleWarning(UserWarning):
    """Every static scale is 1.0: most likely nobody calibrated, and values are stored by a plain cast."""


class Range(NamedTuple):
    """Smallest and largest value that a grid covers, in the keepdim shape of the grouped view."""

    low: Tensor
    high: Tensor


def fit_range(
    grouped: Tensor,
    axes: tuple[int, ...],
    policy: CalibrationPolicy,
    *,
    symmetric: bool,
    squared_error: Callable[[Range], Tensor],
) -> Range:
    """The range of each group by `policy`.

    `squared_error` encodes and decodes the sample with a range and returns the summed squared error of each group, in
    keepdim shape; only the least-error policy calls it.
    """
    if isinstance(policy, Percentile):
        return _percentile_range(grouped, axes, policy.percent, symmetric)
    high = (grouped.abs() if symmetric else grouped).amax(axes, keepdim=True)
    whole = Range(-high if symmetric else grouped.amin(axes, keepdim=True), high)
    return _least_error_range(whole, squared_error) if isinstance(policy, LeastError) else whole


def sum_of_squares(difference: Tensor, axes: tuple[int, ...]) -> Tensor:
    """In float64, keepdim."""
    return difference.to(torch.float64).square().sum(axes, keepdim=True)


def calibration_source(values: Tensor, what: str, scales: Iterable[Tensor]) -> str:
    """`calibrated(POLICY, n=... tokens)`; notes and warns where every scale came out as 1.0."""
    source = f"calibrated({what}, n={values.shape[0] * values.shape[2]} tokens)"
    return note_unit_scales(source, scales, "the sample may be all zero")


def note_unit_scales(source: str, scales: Iterable[Tensor], why: str) -> str:
    """`source`, extended and with a UnitScaleWarning where all of `scales` are 1.0 (B08, B26)."""
    found = list(scales)
    if not found or not all_unit(found):
        return source
    warnings.warn(f"{source}: every scale is 1.0, a plain cast; {why}", UnitScaleWarning, stacklevel=3)
    return f"{source}, all scales 1.0"


def all_unit(scales: Iterable[Tensor]) -> bool:
    return all(bool((scale.float() == 1).all()) for scale in scales)


def require_usable_scales(name: str, scales: Tensor) -> None:
    """Raise CalibrationError, naming the array, unless every scale is finite and above zero (B25)."""
    flat = scales.to(torch.float64).flatten()
    for what, bad in (
        ("NaN", torch.isnan(flat)),
        ("infinite", torch.isinf(flat)),
        ("zero", flat == 0),
        ("negative", flat < 0),
    ):
        if bool(bad.any()):
            raise CalibrationError(
                f"{name} has {int(bad.sum())} {what} of {flat.numel()} scales, first at {int(bad.nonzero()[0])}; every "
                "scale must be finite and above zero: calibrate again, or leave this layer out of the format with skip="
            )


def require_calibration(
    spec: QuantSpec, kv_heads: int, dim: int, parameters: Mapping[str, Tensor], source: str, name: str
) -> None:
    """Raise CalibrationError, naming array and side, where static arrays are missing, misshapen or unusable."""
    if not source:
        raise CalibrationError(f"the calibration of {name} does not say where it comes from; give it a source")
    declared = static_streams(spec, kv_heads, dim)
    if sorted(parameters) != sorted(stream.name for stream in declared):
        raise CalibrationError(
            f"the calibration of {name} holds {', '.join(sorted(parameters)) or 'nothing'}; {spec.method} at "
            f"granularity {spec.granularity.value} needs {', '.join(stream.name for stream in declared) or 'nothing'}"
        )
    for stream in declared:
        found = parameters[stream.name]
        expected = (stream.heads, *stream.block_shape)
        if tuple(found.shape) != expected or found.dtype != getattr(torch, stream.dtype):
            raise CalibrationError(
                f"{stream.name} of {name} is {found.dtype} {list(found.shape)}; expected torch.{stream.dtype} "
                f"{list(expected)}"
            )
        if stream.owner is Owner.SCALES:
            require_usable_scales(f"{stream.name} of {name}", found)
        elif not bool(torch.isfinite(found).all()):
            raise CalibrationError(f"{stream.name} of {name} holds NaN or infinity; calibrate again")


def _percentile_range(grouped: Tensor, axes: tuple[int, ...], percent: float, symmetric: bool) -> Range:
    if symmetric:
        high = _ranked(grouped.abs(), axes, percent)
        return Range(-high, high)
    upper = 100 - (100 - percent) / 2
    return Range(-_ranked(-grouped, axes, upper), _ranked(grouped, axes, upper))


def _ranked(values: Tensor, axes: tuple[int, ...], percent: float) -> Tensor:
    """The smallest value that is at least as large as `percent` of its group."""
    kept = [axis for axis in range(values.dim()) if axis not in axes]
    rows = values.permute(*kept, *axes).flatten(len(kept))
    # Rounded first: 99.9 percent of 1000 is 999.0000000000001 in floating point.
    rank = max(1, math.ceil(round(percent / 100 * rows.shape[-1], 6)))
    shape = [1 if axis in axes else values.shape[axis] for axis in range(values.dim())]
    return rows.kthvalue(rank, dim=-1).values.reshape(shape)


def _least_error_range(whole: Range, squared_error: Callable[[Range], Tensor]) -> Range:
    centre, half = (whole.high + whole.low) / 2, (whole.high - whole.low) / 2
    best, least = whole, squared_error(whole)
    for factor in SHRINK_FACTORS[1:]:
        candidate = Range(centre - half * factor, centre + half * factor)
        error = squared_error(candidate)
        better = error < least
        best = Range(
            torch.where(better, candidate.low, best.low),
            torch.where(better, candidate.high, best.high),
        )
        least = torch.where(better, error, least)
    return best
