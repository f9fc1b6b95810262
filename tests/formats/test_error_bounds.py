"""The error bounds that `kvassay formats show` prints hold (R75, R76), for every example of the method table."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.method_table import TABLE
from kvassay.core.side_names import parse_side
from kvassay.core.spec import QuantSpec
from kvassay.formats import quantizer
from kvassay.formats.float8 import ELEMENTS
from kvassay.formats.grouping import group_values, load_parameters, ungroup_values
from kvassay.formats.lloyd import lloyd_levels

ROUNDING = 2.0**-22
"""Of the largest value: float32 arithmetic of the codec, where a quotient beside a half may round the other way."""
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative rounding error."""
SIDES = [text for method in TABLE for text in method.examples if parse_side(text).rotation is None]
"""A rotation moves the bound to the rotated values, as `formats show` says; the codec inside is the same."""


class Case(NamedTuple):
    """What went in, what came out, and what was stored; all float64."""

    spec: QuantSpec
    x: torch.Tensor
    found: torch.Tensor
    stored: dict[str, torch.Tensor]

    @property
    def error(self) -> torch.Tensor:
        return (self.found - self.x).abs()

    def spread(self, name: str) -> torch.Tensor:
        """A stored or static parameter, one for each value."""
        static = {"scales": "scale", "minimums": "minimum"}[name] if self.spec.is_static else name
        grouped, _ = group_values(self.x, self.spec)
        return ungroup_values(load_parameters(self.stored[static], self.spec).expand_as(grouped), self.spec)

    def grouped(self, reduce: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
        """A reduction over the values that share a scale, one for each value."""
        grouped, axes = group_values(self.x, self.spec)
        return ungroup_values(reduce(grouped, axes).expand_as(grouped), self.spec)


class Judged(NamedTuple):
    error: torch.Tensor
    bound: torch.Tensor


def case_of(side: str, x: torch.Tensor) -> Case:
    spec = parse_side(side)
    codec = quantizer(spec)
    calibration = codec.calibrate(x) if spec.needs_calibration else None
    streams = codec.encode(x, calibration).streams
    found = codec.decode(streams, torch.float64, calibration)
    stored = {**streams, **({} if calibration is None else calibration.parameters)}
    return Case(spec, x.double(), found, {name: array.double() for name, array in stored.items()})


def values(seed: int, exponent: int) -> torch.Tensor:
    """Gaussian, with one spike of forty times the size and one constant group."""
    x = torch.randn(1, 2, 64, 128, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    x[0, 0, 3, 5] *= 40
    x[0, 1, 32:] += 3 * 10.0**exponent
    x[0, 1, :32, :64] = 10.0**exponent
    return x


def rows_of(values: torch.Tensor, width: int) -> torch.Tensor:
    return values.unflatten(-1, (-1, width))


def float_bound(case: Case) -> Judged:
    return Judged(case.error, (case.x.abs() * UNIT[case.spec.code_dtype]).clamp_min(2.0**-25))


def float8_bound(case: Case) -> Judged:
    element = ELEMENTS[case.spec.code_dtype]
    scale = torch.ones(()).double() if case.spec.scale_dtype is None else case.spread("scales")
    smallest = 2.0 ** (element.smallest_exponent - element.mantissa_bits)
    bound = torch.maximum(case.x.abs() / 2 ** (element.mantissa_bits + 1), smallest / 2 * scale)
    return Judged(case.error, bound.where(case.x.abs() <= element.largest * scale, torch.inf))


def int_bound(case: Case) -> Judged:
    return Judged(case.error, case.spread("scales") / 2)


def ggml_bound(case: Case) -> Judged:
    return Judged(case.error, case.spread("scales").abs() / 2 + case.x.abs() * 2.0**-11)


def opposite_bound(case: Case) -> Judged:
    groups = rows_of(case.x, 32)
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = case.spread("scales").abs()
    return Judged(case.error, scale.where((groups * largest < 0).flatten(-2), scale / 2) + case.x.abs() * 2.0**-11)


def range_bound(case: Case) -> Judged:
    low = case.grouped(lambda x, axes: x.amin(axes, keepdim=True))
    high = case.grouped(lambda x, axes: x.amax(axes, keepdim=True))
    return Judged(case.error, case.spread("scales") / 2 + (high - low + low.abs()) * 2.0**-11)


def table_bound(case: Case) -> Judged:
    return Judged(case.error, 0.23 * case.grouped(lambda x, axes: x.abs().amax(axes, keepdim=True)))


def kivi_mix_bound(case: Case) -> Judged:
    promoted = case.stored["promoted_channels"].long()
    levels = torch.full_like(case.stored["scales"], 3).scatter(-1, promoted, 15)
    scale, minimum = case.stored["scales"], case.stored["minimums"]
    bound = scale / 2 + (levels * scale + minimum.abs()) * UNIT[str(case.spec.scale_dtype)]
    return Judged(case.error, bound.repeat_interleave(case.spec.tokens_per_block, dim=2))


def kvarn_bound(case: Case) -> Judged:
    scale, minimum = case.stored["scales"].unsqueeze(-1), case.stored["minimums"].unsqueeze(-1)
    levels = 2**case.spec.num_bits - 1
    bound = scale / 2 + (levels * scale + minimum.abs()) * UNIT[str(case.spec.scale_dtype)]
    tiles = bound * case.stored["column_scales"].unsqueeze(-2)
    return Judged(case.error, (tiles.mT if case.spec.option("axis") == "channel" else tiles).flatten(2, 3))


def midpoint_bound(case: Case) -> Judged:
    return Judged(case.error, case.spread("scales") / 2**case.spec.num_bits)


def exl3_bound(case: Case) -> Judged:
    compand = float(case.spec.option("compand"))
    share = (3 - 2 * compand if compand else 1) / 2**case.spec.num_bits + 2.0**-11
    return Judged(rows_of(case.error, 32).square().mean(-1).sqrt(), case.stored["scales"] * share * (1 + 2.0**-11))


def lloyd_bound(case: Case) -> Judged:
    grouped, _ = group_values(case.x, case.spec)
    norm, dim = grouped.square().sum(-1, keepdim=True).sqrt(), grouped.shape[-1]
    error = group_values(case.error, case.spec).values
    rounding = 1 + 2 * UNIT[str(case.spec.scale_dtype)]
    if case.spec.option("norm") != "plain":
        factor = 1.0 if case.spec.option("norm") == "corrected" else math.sqrt(2)
        return Judged(error.square().sum(-1, keepdim=True).sqrt(), factor * norm * rounding)
    levels = lloyd_levels(case.spec.num_bits)
    gap = max(after - before for before, after in pairwise(levels)) / 2
    bound = norm * max(gap, math.sqrt(dim) - levels[-1]) / math.sqrt(dim)
    return Judged(error, bound.expand_as(error) * rounding)


def lloyd_qjl_bound(case: Case) -> Judged:
    error = case.error.square().sum(-1, keepdim=True).sqrt()
    if case.spec.option("sketch") == "gaussian":  # no bound; the next test has the average
        return Judged(error, torch.full_like(error, torch.inf))
    return Judged(error, math.sqrt(2) * case.stored["residual_norms"] * (1 + 2.0**-11))


def nf4_bound(case: Case) -> Judged:
    bound = 0.152 * case.spread("scales")
    if "outliers" in case.stored:
        at = case.stored["outlier_channels"].long().flatten(2, 3)
        rounded = case.x.abs().gather(-1, at) * UNIT[str(case.spec.scale_dtype)]
        bound = bound.scatter(-1, at, rounded)
    return Judged(case.error, bound)


def nvfp4_bound(case: Case) -> Judged:
    shared = float(case.stored["global_scale"]) if "global_scale" in case.stored else 1.0
    scale = case.spread("scales")
    bound = scale * shared + case.grouped(lambda x, axes: x.abs().amax(axes, keepdim=True)) / 16
    if case.spec.mean:
        bound = scale * shared * (1 + 6 / 16)  # max|x| of what is coded, from its scale
    return Judged(case.error, bound.where(scale >= 2.0**-6, torch.inf))


def e2m1_bound(case: Case) -> Judged:
    scale = case.spread("scales")
    return Judged(case.error, scale * 2 if case.spec.option("exponent") == "floor" else scale)


BOUNDS: dict[str, Callable[[Case], Judged]] = {
    "float": float_bound,
    "float8": float8_bound,
    "int": int_bound,
    "q8_0": ggml_bound,
    "q5_1": range_bound,
    "q5_0": opposite_bound,
    "q4_1": range_bound,
    "q4_0": opposite_bound,
    "iq4_nl": table_bound,
    "kivi-mix": kivi_mix_bound,
    "kvarn": kvarn_bound,
    "midpoint": midpoint_bound,
    "exl3": exl3_bound,
    "lloyd": lloyd_bound,
    "lloyd-qjl": lloyd_qjl_bound,
    "nf4": nf4_bound,
    "nvfp4": nvfp4_bound,
    "e2m1": e2m1_bound,
}


@pytest.mark.parametrize("method", TABLE, ids=lambda method: method.name)
def test_r75_every_method_states_a_bound_that_is_tested_here(method) -> None:
    assert "<=" in method.error_bound
    assert method.name in BOUNDS
    assert any(parse_side(side).method == method.name for side in SIDES)


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), exponent=st.integers(-1, 0))
def test_r75_the_stated_bound_of_the_method_holds(side, seed, exponent) -> None:
    case = case_of(side, values(seed, exponent))
    error, bound = BOUNDS[case.spec.method](case)
    assert error.shape == bound.shape or bound.numel() == 1
    slack = ROUNDING * float(case.x.abs().max())
    assert bool((error <= bound + slack).all()), float(((error - slack) / bound).max())


@pytest.mark.parametrize("side", SIDES)
def test_r75_the_bound_is_no_empty_promise(side) -> None:
    """Some value comes within a factor of its bound, so that a codec of half the precision would break it."""
    case = case_of(side, values(1, 0))
    error, bound = BOUNDS[case.spec.method](case)
    if side == "f32":  # what goes in is float32
        assert float(error.max()) == 0
        return
    finite = torch.isfinite(bound) & (bound > 0)
    if not bool(finite.any()):
        assert case.spec.method == "lloyd-qjl"
        return
    assert float((error / bound)[finite].max()) > TIGHTNESS.get(case.spec.method, 0.85), side


TIGHTNESS = {"iq4_nl": 0.25, "lloyd": 0.05, "lloyd-qjl": 0.5, "exl3": 0.5, "nvfp4": 0.5, "e2m1": 0.25, "kvarn": 0.6}
"""Bounds for the worst group that there is, which random values do not come near."""


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_the_sketch_costs_what_its_row_says(bits) -> None:
    """Over many residuals, whose directions are as good as random, in place of many sketches."""
    x = torch.randn(1, 4, 2000, 128, generator=torch.Generator().manual_seed(bits))
    case = case_of(f"lloyd-qjl-{bits}:token-head", x)
    ratio = case.error.square().sum(-1) / case.stored["residual_norms"].squeeze(-1).square()
    assert float(ratio.mean()) == pytest.approx(math.pi / 2, rel=0.02)


def test_iq4_nl_keeps_its_bound_in_blocks_made_to_break_it() -> None:
    """One extreme value, and all others where the code errs most or moves the fitted scale most."""
    worst = 0.0
    for place in torch.linspace(-1, 1, 801).tolist():
        for opposite in (0.0, -0.999999):
            for count in (1, 8, 30):
                x = torch.zeros(1, 1, 1, 32)
                x[..., 0], x[..., 1] = 1, opposite
                x[..., 2 : 2 + count] = place * 0.999999
                error, bound = table_bound(case_of("iq4_nl", x))
                worst = max(worst, float((error / bound).max()))
    assert 0.8 < worst <= 1
