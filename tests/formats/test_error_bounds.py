"""The error bounds that `kvassay formats show` prints hold (R75, R76); those of `int` are tested in test_codecs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.methods import methods
from kvassay.formats import quantizer


def values(seed: int, exponent: int) -> torch.Tensor:
    x = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    x[0, 0, 3, 5] *= 40
    return x


def round_trip(side: str, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    codec = quantizer(parse_format(f"kv={side}").keys)
    streams = codec.encode(x).streams
    return codec.decode(streams, torch.float64), streams


SLACK = 1 + 4e-6
"""float32 arithmetic of the codec itself: a quotient just beside a half may round the other way."""


@settings(max_examples=40, deadline=None)
@given(
    side=st.sampled_from(["f16", "bf16", "f32", "fp8-e4m3", "fp8-e4m3:token-head", "q8_0", "q4_0"]),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-4, 0),
)
def test_r75_the_stated_bound_of_the_method_holds(side, seed, exponent) -> None:
    x = values(seed, exponent)
    found, streams = round_trip(side, x)
    error, size = (found - x.double()).abs(), x.double().abs()
    scales = streams["scales"].double() if "scales" in streams else torch.ones(1, 1, 1, 1, dtype=torch.float64)
    if side in ("f16", "bf16", "f32"):
        bound = (size * {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}[side]).clamp_min(2.0**-25)
    elif side.startswith("fp8"):
        bound = torch.maximum(size / 16, scales / 1024)
    else:
        step = scales.abs().repeat_interleave(32, dim=3) * (1 + 2.0**-11)
        groups = x.double().unflatten(3, (-1, 32))
        largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        opposite = (groups * largest < 0).flatten(3)
        bound = (step if side == "q4_0" else step / 2).where(opposite, step / 2) + size * 2.0**-11
        bound = bound + 127 * 2.0**-25  # a scale below float16's normal range
    assert bool((error <= bound * SLACK).all()), float((error / bound).max())


@pytest.mark.parametrize("name", ["int", "float", "float8", "q8_0", "q4_0"])
def test_each_of_these_methods_states_its_bound(name) -> None:
    assert "<=" in methods()[name].error_bound
