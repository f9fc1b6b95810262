"""NF4, symmetric and asymmetric, with and without sparse outliers."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm

from kvassay.core.format_names import parse_format
from kvassay.core.layout import stored_bits_per_value, streams
from kvassay.errors import FormatError, GeometryError, RangeError
from kvassay.formats import quantizer
from kvassay.formats.nf4 import NF4_LEVELS


def codec(text):
    return quantizer(parse_format(f"kv={text}").keys)


def round_trip(text: str, x: torch.Tensor) -> torch.Tensor:
    return codec(text).decode(codec(text).encode(x).streams, x.dtype)


def values(tokens=64, dim=128, seed=0) -> torch.Tensor:
    return torch.randn(2, 2, tokens, dim, generator=torch.Generator().manual_seed(seed))


def test_levels_are_quantiles_of_a_gaussian() -> None:
    """QLoRA, appendix E: 7 negative and 8 positive quantiles of evenly spaced probabilities, and zero.

    The outermost probability is 1 − (1/30 + 1/32)/2: half way between the two even spacings.
    """
    outermost = 1 - (1 / 30 + 1 / 32) / 2

    def quantiles(count: int) -> list[float]:
        step = (outermost - 0.5) / count
        return [float(norm.ppf(outermost - step * index)) for index in range(count)]

    negative, positive = quantiles(7), quantiles(8)
    exact = sorted([*(-level for level in negative), 0.0, *positive])
    assert pytest.approx([level / exact[-1] for level in exact], abs=1e-6) == list(NF4_LEVELS)


@pytest.mark.parametrize("side", ["nf4:group64", "nf4:group64/asym", "nf4:token-head/scale=bf16", "nf4:channel32/asym"])
@pytest.mark.parametrize("offset", [0.0, -30.0])
def test_r75_error_stays_within_half_the_widest_gap(side, offset) -> None:
    x = values(seed=1) + offset
    spec = codec(side).spec
    encoded = codec(side).encode(x).streams
    scales = encoded["scales"].double()
    if spec.granularity == "group":
        scales = scales.repeat_interleave(64, dim=-1)
    elif spec.granularity == "channel":
        scales = scales.repeat_interleave(32, dim=2)
    error = (codec(side).decode(encoded, torch.float64) - x.double()).abs()
    assert bool((error <= 0.15191 * scales + 1e-5).all())


def test_the_range_of_an_asymmetric_group_is_its_own() -> None:
    x = values(seed=2) + 5
    symmetric, asymmetric = round_trip("nf4:group64", x), round_trip("nf4:group64/asym", x)
    assert float((asymmetric - x).norm()) < 0.4 * float((symmetric - x).norm())


@pytest.mark.parametrize("side", ["nf4:group64/outliers=3", "nf4:token-head/asym/outliers=3"])
def test_r27_outliers_are_exact_and_leave_the_range_of_the_others(side) -> None:
    """R27: what is kept apart is exact to its float16, and the rest errs as if it were not there."""
    x = values(seed=3)
    loud = x.clone()
    channels = torch.tensor([3, 70, 71])
    loud[..., channels] = torch.tensor([200.0, -300.0, 150.5])
    encoded = codec(side).encode(loud).streams
    assert torch.equal(encoded["outlier_channels"].long(), channels.expand_as(encoded["outlier_channels"]))
    found = codec(side).decode(encoded)
    assert torch.equal(found[..., channels], loud[..., channels])

    quiet = torch.ones(128, dtype=torch.bool)
    quiet[channels] = False
    error = (found - loud)[..., quiet].square().mean()
    undisturbed = (round_trip(side, x) - x)[..., quiet].square().mean()
    assert float(error) < 1.3 * float(undisturbed)
    without = round_trip(side.replace("/outliers=3", ""), loud)
    assert float((without - loud)[..., quiet].square().mean()) > 100 * float(error)


def test_outliers_of_a_biased_channel_are_measured_from_its_median() -> None:
    """Per channel, a large constant bias is no outlier."""
    x = values(seed=4)
    x[..., 9] += 80
    x[0, 0, 5, 40] = 25.0
    encoded = codec("nf4:channel64/asym/outliers=1").encode(x).streams
    chosen = encoded["outlier_channels"].flatten()[: 2 * 2 * 64]
    assert int((chosen == 9).sum()) < 16
    assert int(encoded["outlier_channels"][0, 0, 0, 5, 0]) == 40


def test_b46_equal_deviations_are_settled_by_channel() -> None:
    x = torch.full((1, 1, 3, 64), 2.0)
    x[..., 1::2] = -2.0
    encoded = codec("nf4:group32/outliers=4").encode(x).streams
    assert encoded["outlier_channels"].flatten().tolist() == [0, 1, 2, 3] * 3


def test_wide_heads_take_two_bytes_for_a_channel() -> None:
    x = values(tokens=4, dim=320, seed=5)
    x[..., 300] = 99.0
    side = "nf4:group64/outliers=1"
    encoded = codec(side).encode(x).streams
    assert encoded["outlier_channels"].dtype == torch.uint16
    assert torch.equal(codec(side).decode(encoded)[..., 300], x[..., 300])
    assert stored_bits_per_value(codec(side).spec, 2, 320) == 4.25 + 32 / 320
    assert stored_bits_per_value(codec(side).spec, 2, 256) == 4.25 + 24 / 256


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(GeometryError, match="64 outliers a row leave nothing of head_dim 64; use outliers=1"):
        streams(codec("nf4:group32/outliers=64").spec, 2, 64)
    with pytest.raises(FormatError, match="outliers='65' is not one of its values"):
        parse_format("kv=nf4:group32/outliers=65")
    x = values(tokens=1)
    x[0, 0, 0, 0] = 1e6
    with pytest.raises(RangeError, match=r"outlier of .* does not fit float16"):
        codec("nf4:group32/outliers=1").encode(x)
    assert float(round_trip("nf4:group32/outliers=1/scale=f32", x)[0, 0, 0, 0]) == 1e6
