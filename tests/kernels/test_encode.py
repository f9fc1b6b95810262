"""Codes and pages by the compiled module against the readable twins, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cache.native_rows import NativeRows
from kvassay.cache.page_pool import PagePool
from kvassay.core.format_names import parse_format
from kvassay.core.methods import methods
from kvassay.core.paging import page_layout
from kvassay.formats import quantizer
from kvassay.kernels import native_state
from kvassay.kernels.encode import FLOAT_TYPES, code_grid, encode, encodes, fit
from kvassay.kernels.native import INSTRUCTION_SET_VARIABLE, native_module

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

SCALES = ("", "/scale=f16", "/scale=bf16", "/scale=f32")
CODECS = [
    f"int{bits}:{where}{sign}{scale}"
    for bits, sign in ((8, ""), (8, "/asym"), (4, ""), (4, "/sym"), (2, ""), (2, "/sym"))
    for where in ("group16", "group32", "token-head")
    for scale in SCALES
]
OTHERS = [
    f"{codec}{scale}"
    for codec in (
        "int8:channel32",
        "int4:channel16",
        "int4:channel32/sym",
        "int2:channel32",
        "int4:group24",
        "int8:group12",
        "nf4:group32",
        "nf4:token-head",
        "nf4:channel16",
        "fp8-e4m3:token-head",
        "fp8-e4m3:group24",
        "int4:group32/had/seed=7",
        "int8:token-head/had=16",
        "int2:group32/had=8/seed=3",
        "fp8-e4m3:token-head/had/seed=2",
    )
    for scale in SCALES
    if not (codec == "int8:channel32" and scale == "")  # a static scale
]


@pytest.fixture(params=native_state().instruction_sets)
def each_set(request, monkeypatch) -> str:
    """Every instruction set that this processor has, in turn."""
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, request.param)
    return request.param


def spec_of(codec: str):
    return parse_format(f"kv={codec}").keys


def same(spec, values: torch.Tensor, kept: torch.dtype | None = None) -> bool:
    """True where the module encoded, and gave the twin's bytes."""
    found = encode(spec, values, kept)
    if found is None:
        return False
    expected = quantizer(spec).encode(values if kept is None else values.to(kept))
    assert found.streams.keys() == expected.streams.keys()
    for name, array in expected.streams.items():
        assert array.shape == found.streams[name].shape
        assert array.dtype == found.streams[name].dtype
        assert torch.equal(array.contiguous().view(torch.uint8), found.streams[name].view(torch.uint8)), name
    assert found.clipped_values == expected.clipped_values
    return True


def values_of(magnitude: float) -> torch.Tensor:
    """Rows of several kinds, `[2, 3, 64, 96]`."""
    generator = torch.Generator().manual_seed(5)
    values = magnitude * torch.randn(2, 3, 64, 96, generator=generator)
    values[0, 0, 0] = 0
    values[0, 0, 1] = magnitude
    values[0, 0, 2] = -magnitude
    values[0, 1, :, 5] *= 50
    values[1, 2, 3] = magnitude * torch.arange(96) / 95  # halves between two codes
    return values


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magnitude", [1e-30, 1e-7, 1e-3, 1.0, 300.0])
def test_codes_are_those_of_the_twin(codec, magnitude) -> None:
    spec = spec_of(codec)
    assert encodes(spec)
    for dtype in (torch.float32, torch.bfloat16):
        assert same(spec, values_of(magnitude).to(dtype))


@pytest.mark.parametrize("codec", OTHERS)
@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 20.0])
def test_codes_of_channels_tables_float8_and_rotations_are_those_of_the_twin(codec, magnitude) -> None:
    spec = spec_of(codec)
    assert encodes(spec)
    assert same(spec, values_of(magnitude))


@pytest.mark.parametrize("codec", [*CODECS[::5], *OTHERS[::3]])
def test_every_instruction_set_gives_the_same_bytes(codec, each_set) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert same(spec_of(codec), values_of(2.0).to(dtype))


@pytest.mark.parametrize(
    "codec", ["int4:group32", "int8:token-head", "int2:channel32", "nf4:group32", "bf16", "f16", "f32"]
)
@pytest.mark.parametrize("given_dtype", FLOAT_TYPES)
@pytest.mark.parametrize("kept", FLOAT_TYPES)
def test_values_are_rounded_to_what_is_kept_first(codec, given_dtype, kept, each_set) -> None:
    spec = spec_of(codec)
    if spec.is_exact:
        kept = getattr(torch, spec.code_dtype)
    # Subnormal halves among them, and rows that are no whole vectors.
    values = torch.cat((values_of(1.0), values_of(1e-6)), dim=2)
    assert same(spec, values.to(given_dtype), kept)
    if spec.is_exact:
        assert same(spec, values[..., :27].to(given_dtype), kept)


def test_two_roundings_are_left_to_the_twin() -> None:
    assert encode(spec_of("bf16"), torch.randn(1, 1, 1, 32), torch.float16) is None


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("scale", [1.0, 0.7001953125, 3.0517578125e-05])
def test_quotients_near_a_half_are_rounded_as_if_divided(bits, scale, each_set) -> None:
    """Every half between two codes, and the next numbers on both sides of it, which a product could confuse."""
    top = 2**bits - 1
    halves = torch.tensor([scale * (code + 0.5) for code in range(top)], dtype=torch.float32)
    near = [halves]
    for direction in (-torch.inf, torch.inf):
        beside = halves
        for _ in range(3):
            beside = torch.nextafter(beside, torch.tensor(direction))
            near.append(beside)
    rows = torch.zeros(1, 1, len(near), 288)
    for row, values in enumerate(near):
        rows[0, 0, row, : len(values)] = values
    rows[..., -1] = scale * top
    spec = spec_of(f"int{bits}:token-head/asym/scale=f32" if bits == 8 else f"int{bits}:token-head/scale=f32")
    assert same(spec, rows)


@pytest.mark.parametrize("codec", ["int4:group32", "int8:token-head", "int4:channel32", "f16"])
def test_rows_may_lie_anywhere(codec, each_set) -> None:
    spec, wide = spec_of(codec), torch.randn(2, 32, 3, 70, generator=torch.Generator().manual_seed(2))
    kept = torch.float16 if spec.is_exact else None
    assert same(spec, wide.transpose(1, 2)[..., 5:69], kept)
    assert same(spec, wide.permute(0, 2, 3, 1)[:, :, :64], kept)  # channels apart


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("place", [0, 1, 17, 95])
def test_a_zero_minimum_has_one_sign_wherever_it_stands(codec, place) -> None:
    values = torch.zeros(1, 1, 2, 96)
    values[..., place] = -0.0
    values[..., 1, 50] = 3.0
    assert same(spec_of(codec), values)
    assert same(spec_of(codec), -values.clamp_max(0))


@settings(max_examples=150, deadline=None)
@given(
    codec=st.sampled_from(CODECS),
    row=st.lists(st.floats(-60000, 60000, width=32), min_size=32, max_size=32),
)
def test_any_finite_row_is_encoded_alike_or_left_to_the_twin(codec, row) -> None:
    values = torch.tensor(row).reshape(1, 1, 1, 32)
    spec = spec_of(codec)
    if not same(spec, values):
        # Only what does not fit the type of its scale is left.
        assert spec.scale_dtype == "float16"
        assert values.abs().max() > 30000


@pytest.mark.parametrize("kept", FLOAT_TYPES)
def test_what_fits_is_what_is_finite_once_rounded(kept, each_set) -> None:
    values = torch.randn(1, 2, 3, 37)
    assert fit(values, kept)
    for value in (torch.nan, torch.inf, -torch.inf, 3.4e38):
        wrong = values.clone()
        wrong[0, 1, 2, 36] = value
        assert fit(wrong, kept) is bool(wrong.to(kept).isfinite().all())


@pytest.mark.parametrize("kept", FLOAT_TYPES)
@pytest.mark.parametrize("codec", ["int4:group32", "f32", "bf16"])
@pytest.mark.parametrize(
    ("dtype", "bits", "pattern"),
    [
        (torch.float32, torch.int32, 0x7FFFFFFF),  # the NaN that a GPU computes
        (torch.float32, torch.int32, -1),
        (torch.float32, torch.int32, 0x7F800001),
        (torch.float16, torch.int16, 0x7FFF),
        (torch.float16, torch.int16, -1),
    ],
)
def test_no_nan_is_rounded_to_a_number(dtype, bits, pattern, codec, kept, each_set) -> None:
    """Added to, the bits of some are those of zero."""
    values = torch.zeros(1, 2, 3, 32, dtype=dtype)
    values.view(bits)[0, 1, 2, 31] = pattern
    assert values.isnan().any()
    assert not fit(values, kept)
    spec = spec_of(codec)
    assert encode(spec, values, getattr(torch, spec.code_dtype) if spec.is_exact else kept) is None


def test_nothing_fits_and_what_the_module_cannot_read_is_not_known() -> None:
    assert fit(torch.zeros(1, 1, 0, 4), torch.float16)
    assert not fit(torch.zeros(1, 1, 1, 4, dtype=torch.float64), torch.float16)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("codec", ["int4:group32", "int4:channel32", "int8:token-head/scale=f16"])
def test_what_must_be_refused_is_left_to_the_twin(codec, value, each_set) -> None:
    values = torch.zeros(1, 2, 32, 32)
    values[0, 1, 31, 31] = value
    assert encode(spec_of(codec), values) is None


@pytest.mark.parametrize(
    ("codec", "shape"),
    [("int4:group32", (1, 1, 1, 48)), ("int4:channel32", (1, 1, 31, 32)), ("int4:channel32", (1, 1, 32, 24))],
)
def test_shapes_that_are_not_whole_are_left_to_the_twin(codec, shape) -> None:
    assert encode(spec_of(codec), torch.randn(shape)) is None


def test_rows_without_values_are_refused() -> None:
    grid, nothing = code_grid(spec_of("int4:group32"), 32), np.zeros(0, np.uint8)
    values = torch.zeros(1, 1, 1, 0)
    with pytest.raises(ValueError, match="rows have values"):
        native_module().encode_rows(grid, values, 0, nothing, nothing, nothing, "")


def _bytes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


SPECS = sorted({example for method in methods().values() for example in method.examples})


@pytest.mark.parametrize("codec", SPECS)
@pytest.mark.parametrize("side", ["keys", "values"])
def test_pages_are_written_and_read_as_the_twin_does(codec, side, monkeypatch) -> None:
    """Each writes blocks at odd places of poisoned pages; the other finds them, and no byte beside them changed."""
    parsed = parse_format(f"kv={codec}")
    layout = page_layout(parsed.keys, 3, 320, side)
    native, twin = PagePool(layout), PagePool(layout)
    pages = np.arange(8, dtype=np.int32).reshape(2, 4)
    generator = torch.Generator().manual_seed(1)
    poison = _bytes((8, layout.nbytes), generator)
    for pool in (native, twin):
        pool.allocate(8)
        pool.put_raw(pages.ravel(), poison)
    blocks = layout.blocks * 3 - 1
    first = 0 if layout.blocks == 1 else 1
    written = {
        region.stream.name: torch.randint(
            0,
            256,
            (2, region.stream.heads, blocks - first, region.block_nbytes),
            dtype=torch.uint8,
            generator=generator,
        )
        for region in layout.regions
    }
    for region in layout.regions:
        native.write(region, pages, first, written[region.stream.name])
    monkeypatch.setattr(NativeRows, "is_there", staticmethod(lambda: False))
    for region in layout.regions:
        twin.write(region, pages, first, written[region.stream.name])
    assert torch.equal(native.raw(pages.ravel()), twin.raw(pages.ravel()))
    by_twin = native.read_all(layout.regions, pages)
    monkeypatch.undo()
    for region, found, other in zip(layout.regions, native.read_all(layout.regions, pages), by_twin, strict=True):
        assert torch.equal(found, other)
        assert torch.equal(found[:, :, first:blocks], written[region.stream.name])
