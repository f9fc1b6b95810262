"""4-bit floats with block scales, against `ml_dtypes` and `compressed-tensors`."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.layout import static_nbytes, stored_bits_per_value
from kvassay.core.methods import methods
from kvassay.errors import CalibrationError, FormatError, RangeError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.e2m1 import GRID, code_values, nearest_codes
from kvassay.formats.e8m0 import shared_exponent_scale


def codec_of(text: str):
    return quantizer(parse_format(f"kv={text}").keys)


def gaussian(seed=0, batch=1, heads=2, tokens=128, dim=64) -> torch.Tensor:
    return torch.randn(batch, heads, tokens, dim, generator=torch.Generator().manual_seed(seed))


def sqnr_db(found: torch.Tensor, x: torch.Tensor) -> float:
    return 10 * math.log10(float(x.square().mean() / (found - x).square().mean()))


def decoded(text: str, x: torch.Tensor, calibration: Calibration | None = None) -> torch.Tensor:
    codec = codec_of(text)
    return codec.decode(codec.encode(x, calibration).streams, x.dtype, calibration)


def test_e2m1_codes_equal_ml_dtypes_at_every_value_and_halfway_point() -> None:
    """Bits s|ee|m, nearest, halves to even; saturation at 6; the sign of zero."""
    points = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 100], np.float32)
    around = np.concatenate([points, np.nextafter(points, np.float32(1e9)), np.nextafter(points, np.float32(-1e9))])
    around = np.concatenate([around, -around])
    ours = nearest_codes(torch.from_numpy(around))
    assert np.array_equal(ours.numpy(), around.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def test_e2m1_decodes_as_ml_dtypes_does() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    expected = codes.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(code_values(codes, torch.float32).numpy(), expected)
    assert tuple(expected[:8]) == GRID


def test_codes_are_packed_two_a_byte_the_first_in_the_low_half() -> None:
    x = torch.zeros(1, 1, 1, 32)
    x[..., :4] = torch.tensor([6.0, -1.5, 0.5, 3.0])
    packed = codec_of("mxfp4").encode(x).streams["codes"].flatten()
    assert packed[:2].tolist() == [0x7 | 0xB << 4, 0x1 | 0x5 << 4]


@pytest.mark.parametrize(("text", "group"), [("mxfp4", 32), ("fp4-e2m1:group16/scale=e8m0", 16)])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1.0, 1e6])
def test_mx_blocks_equal_ml_dtypes_by_the_formula_of_the_specification(text, group, magnitude) -> None:
    """OCP MX v1.0, section 6.3: exponent of the largest magnitude less 2; elements cast after division."""
    x = gaussian(1) * magnitude
    x[0, 0, 0, :group] = 0.0
    streams = codec_of(text).encode(x).streams
    blocks = x.numpy().astype(np.float64).reshape(1, 2, 128, -1, group)
    largest = np.abs(blocks).max(-1)
    powers = np.where(largest == 0, 1.0, 2.0 ** (np.floor(np.log2(np.where(largest == 0, 1.0, largest))) - 2))
    scales = powers.astype(ml_dtypes.float8_e8m0fnu)
    assert np.array_equal(
        streams["scales"].view(torch.uint8).numpy(), np.where(largest == 0, 127, scales.view(np.uint8))
    )
    elements = (blocks / powers[..., None]).astype(np.float32).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    elements = elements.reshape(1, 2, 128, 1, -1)
    assert np.array_equal(streams["codes"].numpy(), elements[..., 0::2] | elements[..., 1::2] << 4)


def test_the_exponent_is_exact_at_and_just_below_powers_of_two() -> None:
    """log2 rounds up just below a power of two; frexp does not."""
    powers = torch.exp2(torch.arange(-120, 121, dtype=torch.float32))
    below = torch.nextafter(powers, torch.zeros(()))
    assert torch.equal(shared_exponent_scale(powers, 6.0).to(torch.float32), powers / 4)
    assert torch.equal(shared_exponent_scale(below, 6.0).to(torch.float32), powers / 8)


def test_the_ceil_rule_takes_the_smallest_power_that_saturates_nothing() -> None:
    six = torch.tensor([6.0, 6.0 * 2**-20, np.nextafter(np.float32(6), np.float32(7)), 4.0, 3.0, 0.0])
    assert shared_exponent_scale(six, 6.0, "ceil").to(torch.float32).tolist() == [1.0, 2**-20, 2.0, 1.0, 0.5, 1.0]


def test_e8m0_stays_within_its_exponents() -> None:
    tiny = torch.tensor([1e-45, 2.0**-140], dtype=torch.float32)
    assert shared_exponent_scale(tiny, 6.0).view(torch.uint8).tolist() == [0, 0]
    with pytest.raises(RangeError, match="need a scale above 2\\^127"):
        shared_exponent_scale(torch.tensor([1e300], dtype=torch.float64), 6.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_scale_that_float16_cannot_hold_still_decodes(dtype) -> None:
    x = torch.zeros(1, 1, 2, 32)
    x[0, 0, 0, 0], x[0, 0, 1, 0] = 2.0**-23, 2.0**100
    codec = codec_of("mxfp4")
    found = codec.decode(codec.encode(x).streams, dtype)
    assert float(found[0, 0, 0, 0]) == 2.0**-23
    assert not bool(torch.isnan(found).any())


def test_nvfp4_equals_ml_dtypes_by_its_formula() -> None:
    """s = e4m3(amax / 6), elements cast after division, two a byte."""
    x = gaussian(2)
    x[0, 0, 0, :16] = 0.0
    streams = codec_of("nvfp4").encode(x).streams
    blocks = x.numpy().reshape(1, 2, 128, 4, 16)
    largest = np.abs(blocks).max(-1)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(6)).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(streams["scales"].view(torch.uint8).numpy(), scales.view(np.uint8))
    elements = (blocks / scales.astype(np.float32)[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    elements = elements.reshape(1, 2, 128, 1, -1)
    assert np.array_equal(streams["codes"].numpy(), elements[..., 0::2] | elements[..., 1::2] << 4)


def test_nvfp4_packing_equals_compressed_tensors() -> None:
    """The vLLM project's own packing and unpacking of nvfp4 read and write our bytes."""
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    x = gaussian(3, heads=1)
    codec = codec_of("nvfp4")
    streams = codec.encode(x).streams
    packed = streams["codes"][0, 0, :, 0]
    scales = streams["scales"][0, 0].to(torch.float32).repeat_interleave(16, dim=-1)
    on_grid = helpers.unpack_fp4_from_uint8(packed, 128, 64, dtype=torch.float32)
    assert torch.equal(on_grid * scales, codec.decode(streams)[0, 0])
    assert torch.equal(helpers.pack_fp4_to_uint8(on_grid), packed)
    theirs = helpers.quantize_and_pack_fp4(x[0, 0], streams["scales"][0, 0].to(torch.float32))
    assert torch.equal(theirs, packed)


@pytest.mark.parametrize(("text", "bits"), [("nvfp4", 4.5), ("mxfp4", 4.25), ("fp4-e2m1:group64", 4.25)])
def test_r22_block_scales_are_priced(text, bits) -> None:
    assert stored_bits_per_value(parse_format(f"kv={text}").keys, 8, 128) == bits


def test_names_of_one_format_are_one_format() -> None:
    assert parse_format("kv=fp4-e2m1:group32/scale=e8m0").name == "mxfp4"
    assert parse_format("kv=fp8-e4m3:group32/scale=e8m0").name == "mxfp8-e4m3"
    assert parse_format("kv=fp4-e2m1:group32/scale=f16").name == "kv=fp4-e2m1:group32"


@pytest.mark.parametrize("text", [example for method in methods().values() for example in method.examples])
def test_every_example_has_a_name_that_reads_back(text) -> None:
    kv_format = parse_format(f"kv={text}")
    assert parse_format(kv_format.name) == kv_format


def test_the_static_global_scale_is_declared_counted_and_needed() -> None:
    spec = parse_format("nvfp4-static").keys
    assert spec.needs_calibration
    assert not parse_format("nvfp4").keys.needs_calibration
    assert static_nbytes(spec, 8, 128) == {Owner.SCALES: 4}
    with pytest.raises(CalibrationError, match="calibrate it on sample keys and values"):
        quantizer(spec).encode(gaussian())


def test_a_calibrated_global_scale_keeps_small_values_that_unit_scales_lose() -> None:
    """Values of 0.01 have unit block scales among e4m3's subnormals."""
    x = gaussian(4) * 0.01
    calibration = codec_of("nvfp4/global=static").calibrate(x)
    expected = float(x.abs().max()) / (6 * 448)
    assert float(calibration.parameters["global_scale"]) == pytest.approx(expected, rel=1e-6)
    assert sqnr_db(decoded("nvfp4/global=static", x, calibration), x) > 20.2
    assert sqnr_db(decoded("nvfp4", x), x) < 19.5


def test_b10_the_global_scale_is_read_on_both_ways() -> None:
    x = gaussian(5)
    codec = codec_of("nvfp4/global=static")
    calibration = codec.calibrate(x)
    streams = codec.encode(x, calibration).streams
    double = Calibration({"global_scale": calibration.parameters["global_scale"] * 2}, "test")
    assert torch.equal(
        codec.decode(streams, torch.float32, double), 2 * codec.decode(streams, torch.float32, calibration)
    )
    assert not torch.equal(
        codec.encode(x, double).streams["scales"].view(torch.uint8), streams["scales"].view(torch.uint8)
    )


@pytest.mark.parametrize("text", ["nvfp4", "fp4-e2m1:group32/scale=e4m3"])
def test_b02_what_a_block_scale_cannot_reach_is_counted(text) -> None:
    x = torch.zeros(1, 1, 3, 32)
    x[0, 0, 0, :2] = torch.tensor([6 * 448.0, -6 * 448.0])
    x[0, 0, 1, :3] = torch.tensor([1e4, -1e4, 2688.0])
    encoded = codec_of(text).encode(x)
    assert encoded.clipped_values == 2
    assert codec_of(text).decode(encoded.streams)[0, 0, 1, :3].tolist() == [2688.0, -2688.0, 2688.0]


def test_r2_values_beyond_the_calibrated_range_are_counted() -> None:
    codec = codec_of("nvfp4/global=static")
    calibration = codec.calibrate(torch.full((1, 1, 1, 16), 3.0))
    x = torch.full((1, 1, 1, 16), 3.0)
    assert codec.encode(x, calibration).clipped_values == 0
    x[..., 5] = 9.0
    assert codec.encode(x, calibration).clipped_values == 1


def test_mx_saturation_by_rule_is_an_error_but_no_clipping() -> None:
    """R3: 7.9 comes down to 6 with a scale of one; the specification's own conversion, so no value is clipped."""
    x = torch.zeros(1, 1, 1, 32)
    x[..., 0] = 7.9
    encoded = codec_of("mxfp4").encode(x)
    assert encoded.clipped_values == 0
    assert float(codec_of("mxfp4").decode(encoded.streams)[..., 0]) == 6.0


def test_four_over_six_scales_each_block_to_what_errs_less() -> None:
    """No block errs more, some err less, and the choice is the better of the two by plain search."""
    x = gaussian(6)
    calibration = codec_of("nvfp4/global=static/four_over_six=1").calibrate(x)
    scale = calibration.parameters["global_scale"]
    assert float(scale) == pytest.approx(float(x.abs().max()) / (6 * 256), rel=1e-6)

    def block_error(found: torch.Tensor) -> torch.Tensor:
        return (found - x).double().square().unflatten(-1, (-1, 16)).sum(-1)

    chosen = block_error(decoded("nvfp4/global=static/four_over_six=1", x, calibration))
    six = block_error(decoded("nvfp4/global=static", x, calibration))
    blocks = x.unflatten(-1, (-1, 16))
    to_four = (blocks.abs().amax(-1, keepdim=True) / (4 * scale)).to(torch.float8_e4m3fn).float() * scale
    four = block_error((code_values(nearest_codes(blocks / to_four), torch.float32) * to_four).flatten(-2))
    assert torch.allclose(chosen, torch.minimum(four, six), rtol=1e-5)
    assert 0.2 < float((four < six).double().mean()) < 0.8


def test_four_over_six_gains_on_gaussian_data() -> None:
    x = gaussian(7, heads=4, tokens=512)
    assert sqnr_db(decoded("nvfp4/four_over_six=1", x), x) > sqnr_db(decoded("nvfp4", x), x) + 0.5


@pytest.mark.parametrize(
    "side", ["nvfp4/global=static", "nvfp4/four_over_six=1", "mxfp4", "fp4-e2m1:group32/scale=f32"]
)
@pytest.mark.parametrize("exponent", [-3, 0, 2])
def test_r75_error_bound(side, exponent) -> None:
    """One scale between 4 and 6, two where the floor rule saturates, and a sixteenth of the largest for e4m3."""
    x = gaussian(8) * 10.0**exponent
    codec = codec_of(side)
    calibration = codec.calibrate(x) if codec.spec.needs_calibration else None
    encoded = codec.encode(x, calibration)
    scales = encoded.streams["scales"].to(torch.float32)
    if calibration is not None:
        scales = scales * calibration.parameters["global_scale"].reshape(())
    group = codec.spec.group_size
    blocks = x.unflatten(-1, (-1, group))
    bound = scales * (2 if side == "mxfp4" else 1)
    if side.startswith("nvfp4"):
        bound = bound + blocks.abs().amax(-1) / 16
    error = (codec.decode(encoded.streams, torch.float32, calibration) - x).abs().unflatten(-1, (-1, group)).amax(-1)
    assert bool((error <= bound * 1.0001).all())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nvfp4/global=head", "unit (block scales stand alone) or static"),
        ("nvfp4/four_over_six=2", "0 always to 6"),
        ("nvfp4/scale=f16", "takes scales of e4m3"),
        ("mxfp4:group16", "is fixed and takes no granularity"),
        ("fp4-e2m1:token-head", "it takes groupN"),
        ("fp4-e2m1:group32/exponent=ceil", "is a rule for e8m0 scales"),
    ],
)
def test_bad_options_say_what_would_do(text, message) -> None:
    with pytest.raises(FormatError) as caught:
        codec_of(text)
    assert message in str(caught.value)
