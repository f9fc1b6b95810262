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
from kvassay.kernels.encode import encode, encodes

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

CODECS = [
    f"int{bits}:{where}{sign}{scale}"
    for bits, sign in ((8, ""), (4, ""), (4, "/sym"), (2, ""), (2, "/sym"))
    for where in ("group16", "group32", "token-head")
    for scale in ("", "/scale=f16", "/scale=bf16", "/scale=f32")
]


def spec_of(codec: str):
    return parse_format(f"kv={codec}").keys


def same(spec, values: torch.Tensor) -> bool:
    """True where the module encoded, and gave the twin's bytes."""
    found = encode(spec, values)
    if found is None:
        return False
    expected = quantizer(spec).encode(values)
    assert found.streams.keys() == expected.streams.keys()
    for name, array in expected.streams.items():
        assert array.shape == found.streams[name].shape
        assert array.dtype == found.streams[name].dtype
        assert torch.equal(array.view(torch.uint8), found.streams[name].view(torch.uint8)), name
    assert found.clipped_values == expected.clipped_values
    return True


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magnitude", [1e-30, 1e-7, 1e-3, 1.0, 300.0])
def test_codes_are_those_of_the_twin(codec, magnitude) -> None:
    spec = spec_of(codec)
    assert encodes(spec)
    generator = torch.Generator().manual_seed(5)
    values = magnitude * torch.randn(2, 3, 40, 96, generator=generator)
    values[0, 0, 0] = 0
    values[0, 0, 1] = magnitude
    values[0, 0, 2] = -magnitude
    values[0, 1, :, 5] *= 50
    values[1, 2, 3] = magnitude * torch.arange(96) / 95  # halves between two codes
    for dtype in (torch.float32, torch.bfloat16):
        assert same(spec, values.to(dtype))


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


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_must_be_refused_is_left_to_the_twin(value) -> None:
    values = torch.zeros(1, 1, 2, 32)
    values[0, 0, 1, 3] = value
    assert encode(spec_of("int4:group32"), values) is None


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
