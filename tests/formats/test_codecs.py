"""Every codec over one table of methods: shapes, packing, error bound, ranges, non-finite values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay import testing
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.layout import static_nbytes, stored_bits_per_value
from kvassay.core.methods import methods
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import CalibrationError, RangeError
from kvassay.formats import quantizer
from kvassay.formats.base import stored_outward
from kvassay.formats.packing import pack_codes, unpack_codes

SIDES = [example for method in methods().values() for example in method.examples]
"""A new codec adds its row to the method table, and every test below runs over its examples."""

INTEGER_SIDES = [side for side in SIDES if side.startswith("int")]


def side_spec(text: str) -> QuantSpec:
    return parse_format(f"kv={text}").keys


def values(batch=2, heads=3, tokens=64, dim=64, seed=0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(batch, heads, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def round_trip(text: str, x: torch.Tensor) -> torch.Tensor:
    codec = quantizer(side_spec(text))
    calibration = codec.calibrate(x) if codec.spec.needs_calibration else None
    return codec.decode(codec.encode(x, calibration).streams, x.dtype, calibration)


@pytest.mark.parametrize("side", SIDES)
def test_names_read_back_to_the_same_spec(side) -> None:
    testing.check_name(side)


@pytest.mark.parametrize("side", SIDES)
def test_b61_streams_have_the_declared_shapes_and_bytes(side) -> None:
    """R14, R19, R22: stored bits per value are the real bytes, codes and metadata."""
    testing.check_declared_bytes(side)


@pytest.mark.parametrize("side", SIDES)
def test_b24_every_input_dtype_round_trips(side) -> None:
    testing.check_dtypes(side)


@pytest.mark.parametrize("side", SIDES)
def test_b28_constant_zero_and_tiny_groups_stay_finite(side) -> None:
    testing.check_constants(side)


@pytest.mark.parametrize("side", SIDES)
def test_b30_non_finite_values_are_refused_counted_and_placed(side) -> None:
    testing.check_non_finite(side)


@pytest.mark.parametrize("side", SIDES)
def test_b46_codes_do_not_depend_on_chunking_or_on_other_rows(side) -> None:
    """Groups stay inside one batch row, and whole blocks encode and decode alike alone and together."""
    testing.check_chunks(side)


@pytest.mark.parametrize("side", SIDES)
def test_b53_strided_inputs_encode_and_decode_like_contiguous_ones(side) -> None:
    testing.check_strides(side)


@pytest.mark.parametrize(
    ("side", "bits"),
    [
        ("int4:group64", 4.5),
        ("int4:group32", 5.0),
        ("int2:channel32", 3.0),
        ("q8_0", 8.5),
        ("q4_0", 4.5),
        ("exl3-4", 4.5),
        ("exl3-3", 3.5),
        ("lloyd-4:token-head", 4.125),
        ("lloyd-3:token-head", 3.125),
        ("lloyd-2:token-head", 2.125),
        ("lloyd-qjl-3:token-head", 3.25),
        ("nf4:group64", 4.25),
        ("nf4:group64/asym/outliers=1", 4.6875),
        ("f16", 16.0),
    ],
)
def test_r22_stored_bits_are_not_the_nominal_bits(side, bits) -> None:
    assert stored_bits_per_value(side_spec(side), 8, 128) == bits


def test_q8_0_is_priced_with_its_scale() -> None:
    """A false saving of other tools: 1.000 byte for q8_0. It is 1.0625."""
    assert stored_bits_per_value(side_spec("q8_0"), 8, 128) / 8 == 1.0625


def test_int8_token_head_at_128_is_priced_as_in_vllm() -> None:
    assert stored_bits_per_value(side_spec("int8:token-head"), 8, 128) == 8.25


@pytest.mark.parametrize(
    ("side", "expected_db"),
    [
        ("int4:group64", 21.0),
        ("int4:group128", 20.0),
        ("int2:group32", 8.1),
        ("q4_0", 21.3),
        ("exl3-4", 21.0),
        ("exl3-3", 15.0),
        ("lloyd-4:token-head", 20.3),
        ("lloyd-3:token-head", 14.7),
        ("lloyd-2:token-head", 9.4),
        ("nf4:group64", 20.7),
    ],
)
def test_gaussian_rate(side, expected_db) -> None:
    """SQNR on iid Gaussian data, computed independently for the table of METHODS."""
    x = values(batch=4, heads=4, tokens=512, dim=128)
    error = round_trip(side, x) - x
    sqnr_db = 10 * math.log10(float(x.square().mean() / error.square().mean()))
    assert abs(sqnr_db - expected_db) < 0.15


def is_plain(spec: QuantSpec) -> bool:
    """Scales from the values themselves, no rotation, no mean."""
    return not spec.needs_calibration and spec.rotation is None


def error_bound(codec, encoded, x) -> torch.Tensor:
    """Half a stored step (R75, R76): metadata is rounded outward."""
    spec = codec.spec
    bound = encoded["scales"].double() / 2
    slack = x.double().abs().amax() * 4e-7  # float32 arithmetic of the codec itself
    if spec.granularity is Granularity.GROUP:
        expanded = bound.repeat_interleave(spec.group_size, dim=3)
    elif spec.granularity is Granularity.CHANNEL:
        expanded = bound.repeat_interleave(spec.group_size, dim=2)
    elif spec.granularity is Granularity.BLOCK:
        expanded = bound.repeat_interleave(spec.block_tokens, dim=2).repeat_interleave(spec.group_size, dim=3)
    else:
        expanded = bound.expand_as(x) if bound.shape[1] == 1 else bound
    return expanded + slack


@settings(max_examples=60, deadline=None)
@given(
    side=st.sampled_from([side for side in INTEGER_SIDES if is_plain(side_spec(side))]),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-6, 3),
    offset=st.sampled_from([0.0, 1.0, -100.0, 1000.0]),
)
def test_r75_error_stays_within_half_a_step_and_the_metadata_term(side, seed, exponent, offset) -> None:
    x = values(batch=1, heads=2, tokens=32, dim=64, seed=seed) * 10.0**exponent + offset
    codec = quantizer(side_spec(side))
    encoded = codec.encode(x).streams
    error = (codec.decode(encoded, torch.float64) - x.double()).abs()
    assert bool((error <= error_bound(codec, encoded, x)).all())


NO_LEVEL_FOR_CONSTANTS = ("midpoint", "exl3", "lloyd", "lloyd-qjl")


def holds_constants(side: str) -> bool:
    spec = side_spec(side)
    return is_plain(spec) and spec.method not in NO_LEVEL_FOR_CONSTANTS


@pytest.mark.parametrize("side", [side for side in SIDES if holds_constants(side)])
@pytest.mark.parametrize("constant", testing.CONSTANTS)
def test_b28_b31_constant_zero_and_tiny_groups_are_met(side, constant) -> None:
    """R70: a zero group, and one whose maximum underflows in the stored scale type, uses scale one."""
    x = torch.full((1, 2, 32, 64), constant)
    codec = quantizer(side_spec(side))
    encoded = codec.encode(x).streams
    if "scales" in encoded and codec.spec.method in ("int", "float8", "kvarn", "kivi-mix"):
        assert bool((encoded["scales"] != 0).all())
    found = codec.decode(encoded)
    tolerance = 0.06 if side in ("fp8-e4m3", "bf16") else 1e-3
    # Below this, the smallest stored scale is coarser than the value: half an e4m3 subnormal, 127 half float16 ones.
    resolution = {"fp8-e4m3": 2**-10, "f16": 2**-25}.get(side, 127 * 2**-25)
    assert float((found - x).abs().max()) <= max(abs(constant) * tolerance, resolution)


def test_b02_unit_scale_fp8_counts_what_saturates() -> None:
    x = values(batch=1, heads=1, tokens=16)
    x[..., 3] = 600.0
    encoded = quantizer(side_spec("fp8-e4m3")).encode(x)
    assert encoded.clipped_values == 16
    assert quantizer(side_spec("fp8-e4m3:token-head")).encode(x).clipped_values == 0


def test_fp8_values_that_round_to_the_largest_one_are_not_clipped() -> None:
    x = torch.full((1, 1, 1, 64), 463.0)
    encoded = quantizer(side_spec("fp8-e4m3")).encode(x)
    assert encoded.clipped_values == 0
    assert float(quantizer(side_spec("fp8-e4m3")).decode(encoded.streams).max()) == 448.0


def test_r2_static_scale_counts_clipped_values_and_rounding_stays_apart() -> None:
    """R2, R3: a static scale clips what lies beyond it; what lies inside has rounding error only."""
    codec = quantizer(side_spec("int8:tensor"))
    calibration = codec.calibrate(torch.full((1, 1, 1, 64), 1.27))
    x = torch.zeros(1, 1, 2, 64)
    x[0, 0, 0, :5] = torch.tensor([1.0, -1.27, 1.2749, 1.28, -50.0])
    encoded = codec.encode(x, calibration)
    assert encoded.clipped_values == 2
    found = codec.decode(encoded.streams, torch.float32, calibration)
    assert float((found - x)[0, 0, 0, :3].abs().max()) <= 0.005 + 1e-6


def test_a_static_format_without_calibration_is_refused() -> None:
    """B08: there is no silent scale of one."""
    with pytest.raises(CalibrationError, match="calibrate it on sample keys and values"):
        quantizer(side_spec("int8:tensor")).encode(values())


def test_scale_overflow_is_refused() -> None:
    with pytest.raises(RangeError, match="does not fit float16; use a format with float32 scales"):
        quantizer(side_spec("int4:group32")).encode(values() * 1e7)


def test_b17_values_beyond_float16_are_refused_not_wrapped() -> None:
    with pytest.raises(RangeError, match="do not fit float16"):
        quantizer(side_spec("f16")).encode(values() * 1e6)


def test_r68_symmetric_int8_never_uses_minus_128() -> None:
    x = -values().abs()
    codes = quantizer(side_spec("int8:token-head")).encode(x).streams["codes"]
    assert int(codes.min()) == -127


def test_r68_rounds_halves_to_even() -> None:
    x = torch.zeros(1, 1, 1, 64)
    x[0, 0, 0, :6] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
    codes = quantizer(side_spec("int8:token-head")).encode(x).streams["codes"].flatten()[:6]
    assert codes.tolist() == [127, 0, 2, 2, 0, -2]


def test_r77_b23_a_row_scale_isolates_other_rows_and_other_sides() -> None:
    x = values(batch=1, heads=2, tokens=32)
    loud = x.clone()
    loud[0, 0, 5] *= 1000
    quiet_rows = torch.ones(2, 32, dtype=torch.bool)
    quiet_rows[0, 5] = False
    for side in ("int8:token-head", "int4:group32", "fp8-e4m3:token-head", "q4_0"):
        before, after = round_trip(side, x), round_trip(side, loud)
        assert torch.equal(before[0][quiet_rows], after[0][quiet_rows])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 9), st.integers(0, 2**31))
def test_packing_is_dense_and_loses_nothing(num_bits, bytes_per_row, seed) -> None:
    dim = bytes_per_row * (8 // num_bits)
    codes = torch.randint(0, 1 << num_bits, (3, dim), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack_codes(codes, num_bits)
    assert packed.shape == (3, bytes_per_row)
    assert torch.equal(unpack_codes(packed, num_bits), codes)


@pytest.mark.parametrize("side", ["int4:group32", "int2:channel32", "int8:token-head", "q4_0"])
def test_r1_b22_more_bits_or_finer_groups_err_less(side) -> None:
    """R4, R5, R23: the same data under one switch, error against real bytes."""
    x = values(tokens=128)
    x[..., 5] *= 12
    error = float((round_trip(side, x) - x).norm() / x.norm())
    coarse = float((round_trip("int2:group64", x) - x).norm() / x.norm())
    assert error < coarse


def test_static_scales_are_counted() -> None:
    assert static_nbytes(side_spec("int8:tensor"), 3, 64) == {Owner.SCALES: 4}
    assert static_nbytes(side_spec("int4:tensor"), 3, 64) == {Owner.SCALES: 4, Owner.ZERO_POINTS: 4}
    assert static_nbytes(side_spec("int8:token-head"), 3, 64) == {}
    assert static_nbytes(side_spec("fp8-e4m3:head"), 3, 64) == {Owner.SCALES: 12}
    assert static_nbytes(side_spec("int8:channel/mean"), 3, 64) == {Owner.SCALES: 768, Owner.ZERO_POINTS: 768}


@pytest.mark.parametrize(
    "side",
    [side for side in SIDES if not side_spec(side).needs_calibration and side_spec(side).scale_dtype is not None],
)
@pytest.mark.parametrize("size", [3e-8, 3e-6, 1e-4, 1.0, 300.0])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_no_dynamic_scale_saturates(side, size, offset) -> None:
    """The scale is rounded up and the minimum down, so metadata of 16 bits never cuts a value off."""
    x = values(dtype=torch.float32) * size + offset
    codec = quantizer(side_spec(side))
    encoded = codec.encode(x)
    assert encoded.clipped_values == 0
    if side in INTEGER_SIDES and is_plain(codec.spec):
        error = (codec.decode(encoded.streams, torch.float64) - x.double()).abs()
        assert bool((error <= error_bound(codec, encoded.streams, x)).all())


def test_scales_and_minimums_are_rounded_outward_to_neighbours() -> None:
    exact = torch.tensor([0.0, 1e-9, 1.0, 1.0001, 3.3e-5, 65503.0, -1e-9, -1.0001, -3.3e-5])
    for dtype in ("float16", "bfloat16"):
        up, down = stored_outward(exact, dtype, "scale", up=True), stored_outward(exact, dtype, "scale", up=False)
        assert bool((up.double() >= exact.double()).all())
        assert bool((down.double() <= exact.double()).all())
        nearest = exact.to(getattr(torch, dtype)).double()
        assert bool(((up.double() == nearest) | (down.double() == nearest)).all())
        assert float((up.double() - down.double())[exact == 1.0]) == 0.0
