"""How static scales are chosen from samples, and which are refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import kvassay
from kvassay.cache import QuantizedCache
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import SidePlan
from kvassay.core.layout import static_streams
from kvassay.core.methods import methods
from kvassay.engines.transformers.decode_view import decode_view
from kvassay.errors import CalibrationError, PackedKVError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.calibration import (
    SHRINK_FACTORS,
    LeastError,
    MinMax,
    Percentile,
    UnitScaleWarning,
    parse_policy,
    require_calibration,
)
from tests.tiny_models import tiny_config

STATIC_SIDES = [
    f"{word}:{granularity}"
    for word in ("int8", "int4", "int2", "fp8-e4m3", "fp8-e5m2")
    for granularity in ("tensor", "head", "channel")
] + ["int4:tensor/sym", "nvfp4/global=static"]
POLICIES = [MinMax(), Percentile(99.9), LeastError()]


def codec_of(text: str):
    return quantizer(parse_format(f"kv={text}").keys)


def long_tailed(seed=0) -> torch.Tensor:
    """Gaussian with one value in a thousand twenty times as large; heads and channels of unequal size."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 256, 32, generator=draw)
    x = torch.where(torch.rand(x.shape, generator=draw) < 1e-3, 20 * x, x)
    return x * torch.logspace(-1, 1, 3)[:, None, None] * torch.linspace(0.5, 2, 32)


def squared_error(text: str, x: torch.Tensor, policy) -> float:
    codec = codec_of(text)
    calibration = codec.calibrate(x, policy)
    found = codec.decode(codec.encode(x, calibration).streams, torch.float64, calibration)
    return float((found - x.double()).square().sum())


@pytest.mark.parametrize("side", STATIC_SIDES)
def test_the_least_error_is_never_above_that_of_min_max(side) -> None:
    x = long_tailed()
    assert squared_error(side, x, LeastError()) <= squared_error(side, x, MinMax())


@pytest.mark.parametrize("side", ["int4:tensor", "int4:tensor/sym", "int2:head", "int4:channel", "int8:tensor"])
def test_a_long_tail_is_clipped_where_that_errs_less(side) -> None:
    x = long_tailed()
    assert squared_error(side, x, LeastError()) < 0.97 * squared_error(side, x, MinMax())


@pytest.mark.parametrize("side", ["int8:tensor", "int4:tensor", "fp8-e4m3:tensor"])
def test_the_least_error_is_the_best_of_the_documented_grid(side) -> None:
    """Each factor by plain search, through the codec itself."""
    x = long_tailed()[:1, :1]
    codec = codec_of(side)
    low, high = float(x.min()), float(x.max())
    if codec.spec.symmetric:
        high = float(x.abs().max())
        low = -high
    errors = []
    for factor in SHRINK_FACTORS:
        centre, half = (high + low) / 2, (high - low) / 2 * factor
        ends = torch.tensor([centre - half, centre + half]).repeat(16).reshape(1, 1, 1, 32)
        calibration = codec.calibrate(ends)
        found = codec.decode(codec.encode(x, calibration).streams, torch.float64, calibration)
        errors.append(float((found - x.double()).square().sum()))
    assert squared_error(side, x, LeastError()) == pytest.approx(min(errors), rel=1e-4)


def test_a_percentile_is_the_nearest_rank_of_magnitudes() -> None:
    """99 percent of 1 to 1000: the 990th."""
    x = torch.arange(1.0, 1001.0).reshape(1, 1, 125, 8)
    x[0, 0, ::2] *= -1
    scale = codec_of("int8:tensor").calibrate(x, Percentile(99)).parameters["scale"]
    assert float(scale) == pytest.approx(990 / 127, rel=1e-6)
    scale = codec_of("fp8-e4m3:tensor").calibrate(x, Percentile(99.9)).parameters["scale"]
    assert float(scale) == pytest.approx(999 / 448, rel=1e-6)


def test_an_asymmetric_percentile_leaves_half_out_on_each_side() -> None:
    x = torch.arange(1.0, 1001.0).reshape(1, 1, 125, 8)
    found = codec_of("int8:tensor/asym").calibrate(x, Percentile(98)).parameters
    assert float(found["minimum"]) == 11.0
    assert float(found["scale"]) == pytest.approx((990 - 11) / 255, rel=1e-6)


def test_r2_a_percentile_clips_the_share_it_leaves_out() -> None:
    x = torch.randn(1, 1, 1000, 8, generator=torch.Generator().manual_seed(3))
    codec = codec_of("int8:tensor")
    assert codec.encode(x, codec.calibrate(x)).clipped_values == 0
    share = codec.encode(x, codec.calibrate(x, Percentile(99))).clipped_values / x.numel()
    assert 0.008 < share < 0.01


def test_percentile_100_is_min_max() -> None:
    x = long_tailed()
    for side in STATIC_SIDES:
        codec = codec_of(side)
        found, expected = codec.calibrate(x, Percentile(100)), codec.calibrate(x)
        for name, array in expected.parameters.items():
            assert torch.equal(found.parameters[name], array), side


@pytest.mark.parametrize("side", STATIC_SIDES)
@pytest.mark.parametrize("policy", POLICIES)
def test_b08_the_source_says_policy_and_tokens(side, policy) -> None:
    calibration = codec_of(side).calibrate(long_tailed(), policy)
    assert calibration.source == f"calibrated({policy.text}, n=512 tokens)"
    require_calibration(codec_of(side).spec, 3, 32, calibration.parameters, calibration.source, "keys of layer 0")


def test_a_policy_reaches_through_rotation_and_mean() -> None:
    x = long_tailed()
    codec = codec_of("int4:tensor/mean")
    whole, best = codec.calibrate(x), codec.calibrate(x, LeastError())
    assert torch.equal(whole.parameters["mean"], best.parameters["mean"])
    assert float(best.parameters["scale"]) < float(whole.parameters["scale"])
    assert best.source == "calibrated(mse, n=512 tokens)"
    assert codec_of("int4:group32/mean").calibrate(x).source == "calibrated(mean, n=512 tokens)"


def test_b08_unit_scales_warn_and_are_recorded() -> None:
    codec = codec_of("int8:tensor")
    with pytest.warns(UnitScaleWarning, match=r"every scale is 1\.0, a plain cast"):
        calibration = codec.calibrate(torch.zeros(1, 1, 4, 8))
    assert calibration.source == "calibrated(min-max, n=4 tokens), all scales 1.0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codec.calibrate(torch.ones(1, 1, 4, 8))


@pytest.mark.parametrize(
    ("bad", "what"), [(0.0, "zero"), (-0.5, "negative"), (float("nan"), "NaN"), (float("inf"), "infinite")]
)
def test_b25_unusable_scales_are_refused_by_name(bad, what) -> None:
    codec = codec_of("fp8-e4m3:head")
    scale = torch.tensor([1.0, 0.5, bad]).reshape(3, 1, 1)
    with pytest.raises(CalibrationError, match=f"scale of keys of layer 7 has 1 {what} of 3 scales, first at 2"):
        require_calibration(codec.spec, 3, 32, {"scale": scale}, "test", "keys of layer 7")


@pytest.mark.parametrize(
    ("parameters", "source", "message"),
    [
        (
            {"scale": torch.ones(2, 1, 1)},
            "test",
            r"scale of keys is .* \[2, 1, 1\]; expected .* \[3, 1, 1\]",
        ),
        ({"scale": torch.ones(3, 1, 1).half()}, "test", r"is torch\.float16 .* expected torch\.float32"),
        ({}, "test", "holds nothing; float8 at granularity head needs scale"),
        ({"scale": torch.ones(3, 1, 1), "mean": torch.ones(3, 1, 32)}, "test", "holds mean, scale"),
        ({"scale": torch.ones(3, 1, 1)}, "", "does not say where it comes from"),
    ],
)
def test_misshapen_static_arrays_are_refused(parameters, source, message) -> None:
    with pytest.raises(CalibrationError, match=message):
        require_calibration(codec_of("fp8-e4m3:head").spec, 3, 32, parameters, source, "keys")


def test_policies_have_names() -> None:
    assert [parse_policy(text) for text in ("min-max", "percentile 99.9", "mse")] == POLICIES
    with pytest.raises(CalibrationError, match=r"use min-max, mse .* or for example 'percentile 99\.9'"):
        parse_policy("entropy")
    with pytest.raises(CalibrationError, match="a percentile lies in"):
        Percentile(0)


def test_a_format_without_static_scales_takes_no_policy() -> None:
    with pytest.raises(CalibrationError, match="needs no calibration"):
        codec_of("int8:token-head").calibrate(long_tailed(), LeastError())
    assert isinstance(codec_of("int8:tensor").calibrate(long_tailed()), Calibration)


def bad_calibrations() -> Iterator:
    """Every static array of every example of the method table that has one, with each value it cannot hold."""
    sides = {text for method in methods().values() for text in method.examples}
    for text in sorted({*sides, *STATIC_SIDES, "int4:group32/mean", "int4:tensor/asym"}):
        spec = parse_format(f"kv={text}").keys
        for stream in static_streams(spec, 2, 32):
            values = [float("nan"), float("inf"), -float("inf")]
            if stream.owner is Owner.SCALES:
                values += [0.0, -0.0, -0.5]
            for bad in values:
                yield pytest.param(text, stream.name, bad, id=f"{text} {stream.name} {bad}")


def spoilt(text: str, name: str, bad: float) -> tuple[torch.Tensor, Calibration]:
    x = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(8))
    given = codec_of(text).calibrate(x)
    arrays = {key: array.clone() for key, array in given.parameters.items()}
    arrays[name].flatten()[-1] = bad
    return x, Calibration(arrays, given.source)


@pytest.mark.parametrize(("text", "name", "bad"), list(bad_calibrations()))
def test_b25_no_hand_made_calibration_gets_as_far_as_a_code(text, name, bad) -> None:
    """Cache, packed format and one-pass scorer alike name the array and refuse."""
    x, calibration = spoilt(text, name, bad)
    config = tiny_config("llama", head_dim=32)
    layers = dict.fromkeys(range(config.num_hidden_layers), ((calibration, calibration),))
    with pytest.raises(CalibrationError, match=rf"^{name} of the keys of layer 0 (has|holds) "):
        QuantizedCache(config, f"kv={text}", calibration=layers)
    with pytest.raises(CalibrationError, match=rf"keys of layer 0: {name} of the given calibration (has|holds) "):
        kvassay.format(f"kv={text}").encode(x, x, calibration=((calibration, calibration),))
    plan = SidePlan("keys", codec_of(text).spec, 0, 0, None)
    with pytest.raises(CalibrationError, match=rf"{name} of the given calibration (has|holds) "):
        decode_view(x, plan, "float32", calibration, "keys")


@pytest.mark.parametrize(("text", "bad"), [("int8:tensor", 0.0), ("nvfp4/global=static", -1.0), ("int4:head", 0.0)])
def test_b25_a_packed_file_with_such_a_scale_is_refused(text, bad, tmp_path) -> None:
    """A writer that is not ours may store one."""
    fmt = kvassay.format(f"kv={text}")
    x = torch.randn(1, 2, 64, 32, generator=torch.Generator().manual_seed(8))
    packed = fmt.encode(x, x, calibration=fmt.calibrate(x, x))
    name = next(each for each in packed.arrays if ".static." in each and "scale" in each)
    packed.arrays[name].fill_(bad)
    packed.save(tmp_path / "layer.safetensors")
    with pytest.raises(PackedKVError, match=rf"layer\.safetensors: {name.rsplit('.', 1)[-1]} of group0\.keys has"):
        kvassay.load_packed(tmp_path / "layer.safetensors")


def test_a_packed_format_calibrates_by_policy() -> None:
    x = long_tailed()
    fmt = kvassay.format("kv=int4:tensor")
    ((keys, values),) = fmt.calibrate(x, x, policy="least-error")
    assert keys.source == values.source == "calibrated(mse, n=512 tokens)"
    assert torch.equal(keys.parameters["scale"], codec_of("int4:tensor").calibrate(x, LeastError()).parameters["scale"])
    with pytest.raises(CalibrationError, match="calibration policy 'best' is unknown"):
        fmt.calibrate(x, x, policy="best")
