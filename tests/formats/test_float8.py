"""The float8 family against torch's own casts and `ml_dtypes`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.errors import ForeignFormatError, FormatError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.float8 import ELEMENTS

DTYPES = {
    "fp8-e4m3": "float8_e4m3fn",
    "fp8-e5m2": "float8_e5m2",
    "fp8-e4m3fnuz": "float8_e4m3fnuz",
    "fp8-e5m2fnuz": "float8_e5m2fnuz",
}


def codec_of(text: str):
    return quantizer(parse_format(f"kv={text}").keys)


def every_code(dtype: str) -> torch.Tensor:
    """Finite values of all 256 codes, in float64."""
    values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).to(torch.float64)
    return values[torch.isfinite(values)]


def hard_values(dtype: str) -> torch.Tensor:
    """Every value of the type, every halfway point, and both float32 neighbours of those; up to the largest."""
    exact = every_code(dtype).unique()
    halfway = (exact[1:] + exact[:-1]) / 2
    points = torch.cat((exact, halfway)).to(torch.float32)
    around = [points, torch.nextafter(points, points + 1e30), torch.nextafter(points, points - 1e30)]
    found = torch.cat(around)
    found = found[found.abs() <= ELEMENTS[dtype].largest]
    return found[: found.numel() // 4 * 4].reshape(1, 1, -1, 4)


def as_ml_dtypes(values: torch.Tensor, dtype: str) -> torch.Tensor:
    return torch.from_numpy(values.numpy().astype(getattr(ml_dtypes, dtype)).view(np.uint8))


@pytest.mark.parametrize(("word", "dtype"), DTYPES.items())
def test_r10_casts_equal_torch_and_ml_dtypes_code_for_code(word, dtype) -> None:
    """R10: E4M3 and E5M2. Every value, halfway point and their neighbours, so that any other rounding shows."""
    x = hard_values(dtype)
    codes = codec_of(word).encode(x).streams["codes"].flatten(2, 3)
    assert torch.equal(codes.view(torch.uint8), x.to(getattr(torch, dtype)).view(torch.uint8))
    assert torch.equal(codes.view(torch.uint8), as_ml_dtypes(x, dtype))


@pytest.mark.parametrize(("word", "dtype"), DTYPES.items())
def test_every_code_decodes_as_in_ml_dtypes(word, dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 4, 1, 64)
    found = codec_of(word).decode({"codes": codes.view(getattr(torch, dtype))}).flatten()
    expected = codes.flatten().numpy().view(getattr(ml_dtypes, dtype)).astype(np.float32)
    assert np.array_equal(found.numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(("word", "dtype"), DTYPES.items())
def test_b02_what_saturates_is_counted_and_nothing_else(word, dtype) -> None:
    """Halfway to the next value rounds down where the largest code is even, else it would overflow."""
    element = ELEMENTS[dtype]
    assert float(torch.finfo(getattr(torch, dtype)).max) == element.largest
    below, above = np.nextafter(np.float32(element.halfway), np.float32([0, 1e9]))
    rows = torch.tensor([element.largest, float(below), element.halfway, float(above), 1e30])
    x = torch.cat((rows, -rows))[None, None, :, None].expand(-1, -1, -1, 8)
    encoded = codec_of(word).encode(x)
    assert encoded.clipped_values == 2 * 8 * (3 if element.halfway_saturates else 2)
    assert set(codec_of(word).decode(encoded.streams).flatten().tolist()) == {element.largest, -element.largest}


@pytest.mark.parametrize("word", DTYPES)
def test_an_absmax_scale_meets_the_largest_value_and_clips_nothing(word) -> None:
    x = torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(1)) * 1e4
    codec = codec_of(f"{word}:token-head")
    encoded = codec.encode(x)
    found = codec.decode(encoded.streams)
    assert encoded.clipped_values == 0
    assert torch.allclose(found.abs().amax(-1), x.abs().amax(-1), rtol=1e-6)
    half_step = 2.0 ** -(ELEMENTS[DTYPES[word]].mantissa_bits + 1)
    assert bool(((found - x).abs() <= x.abs() * half_step * 1.00001 + 1e-2).all())


def test_b24_float64_is_rounded_once() -> None:
    """Just above halfway: by way of float32 it becomes exactly halfway, and then goes down to even."""
    x = torch.full((1, 1, 1, 8), 1 + 2**-4 + 2**-40, dtype=torch.float64)
    codec = codec_of("fp8-e4m3")
    assert float(codec.decode(codec.encode(x).streams).max()) == 1.125
    assert float(x.to(torch.float8_e4m3fn).to(torch.float32).max()) == 1.0


@pytest.mark.parametrize(("word", "dtype"), DTYPES.items())
def test_float64_input_gives_the_codes_of_float32_input(word, dtype) -> None:
    x = hard_values(dtype)
    double = codec_of(word).encode(x.to(torch.float64)).streams["codes"]
    assert torch.equal(double.view(torch.uint8), codec_of(word).encode(x).streams["codes"].view(torch.uint8))


def test_b16_codes_of_another_float8_are_refused() -> None:
    """e4m3fnuz bytes read as e4m3fn are half the value, without any error elsewhere."""
    streams = codec_of("fp8-e4m3fnuz").encode(torch.ones(1, 1, 1, 8)).streams
    assert float(streams["codes"].view(torch.float8_e4m3fn).to(torch.float32).max()) == 2.0
    with pytest.raises(ForeignFormatError, match=r"codes are torch\.float8_e4m3fnuz, this format stores"):
        codec_of("fp8-e4m3").decode(streams)


def test_b13_a_static_scale_multiplies_codes() -> None:
    """Its reciprocal gives a failing round trip, so that a multiply-divide confusion shows."""
    codec = codec_of("fp8-e4m3:tensor")
    half = Calibration({"scale": torch.full((1, 1, 1), 0.5)}, "test")
    x = torch.tensor([1.0, -3.0, 0.25, 192.0]).repeat(2).reshape(1, 1, 1, 8)
    streams = codec.encode(x, half).streams
    codes = streams["codes"].to(torch.float32).flatten(2, 3)
    assert torch.equal(codec.decode(streams, torch.float32, half), codes * 0.5)
    assert torch.equal(codec.decode(streams, torch.float32, half), x)
    reciprocal = Calibration({"scale": torch.full((1, 1, 1), 2.0)}, "test")
    assert not torch.equal(codec.decode(streams, torch.float32, reciprocal), x)


@pytest.mark.parametrize(("word", "dtype"), DTYPES.items())
def test_mxfp8_scales_are_powers_of_two_and_elements_equal_ml_dtypes(word, dtype) -> None:
    x = torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(2)) * 30
    streams = codec_of(f"{word}:group32/scale=e8m0").encode(x).streams
    blocks = x.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1)))
    largest_exponent = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float8_e4m3fnuz": 7, "float8_e5m2fnuz": 15}[dtype]
    assert torch.equal(streams["scales"].to(torch.float32), torch.exp2(exponent - largest_exponent))
    scaled = blocks / streams["scales"].to(torch.float32).unsqueeze(-1)
    largest = ELEMENTS[dtype].largest
    expected = as_ml_dtypes(scaled.clamp(-largest, largest), dtype).flatten(-2)
    assert torch.equal(streams["codes"].flatten(2, 3).view(torch.uint8), expected)


def test_mxfp8_saturation_by_rule_is_no_clipping() -> None:
    """R3: 500 has exponent 8, so a scale of one, and comes down to 448."""
    x = torch.zeros(1, 1, 1, 32)
    x[..., 0] = 500.0
    codec = codec_of("fp8-e4m3:group32/scale=e8m0")
    encoded = codec.encode(x)
    assert encoded.clipped_values == 0
    assert float(codec.decode(encoded.streams)[..., 0]) == 448.0


def test_a_static_power_of_two_scale_is_refused() -> None:
    with pytest.raises(FormatError, match="drop scale=e8m0, or use group32"):
        codec_of("fp8-e4m3:tensor/scale=e8m0")
