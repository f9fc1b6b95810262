"""KIVI keys with promoted channels: which are promoted, at what step, and for how many bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cache.side_store import SideStore
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import head_groups
from kvassay.core.layout import stored_bits_per_value, streams
from kvassay.core.side_names import parse_side
from kvassay.errors import FormatError, GeometryError
from kvassay.formats import quantizer


def keys(seed=0, dim=64, tokens=64) -> torch.Tensor:
    """Channels of unequal size: `[2, 2, tokens, dim]`."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(2, 2, tokens, dim, generator=rng) * torch.randn(dim, generator=rng).exp()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), promoted=st.sampled_from([4, 8, 16, 60, 64]), dim=st.sampled_from([64, 96, 320]))
def test_the_channels_of_largest_range_are_promoted_and_all_err_within_half_their_step(seed, promoted, dim) -> None:
    """R27, R75; the index of a channel is one byte up to 256 channels and two above."""
    x = keys(seed, dim)
    codec = quantizer(parse_side(f"kivi-mix:channel32/promoted={promoted}"))
    encoded = codec.encode(x).streams
    which = encoded["promoted_channels"]
    assert which.dtype == (torch.uint8 if dim <= 256 else torch.uint16)
    blocks = x.unflatten(2, (-1, 32))
    value_range = blocks.amax(3) - blocks.amin(3)
    is_promoted = torch.zeros_like(value_range, dtype=torch.bool).scatter(-1, which.long(), True)
    assert int(is_promoted.sum(-1).min()) == promoted
    least_promoted = value_range.masked_fill(~is_promoted, torch.inf).amin(-1)
    most_other = value_range.masked_fill(is_promoted, 0).amax(-1)
    # The minimum that a range is measured from is a stored float16.
    assert bool((least_promoted >= most_other * (1 - 2e-3) - 1e-2).all())

    levels = torch.where(is_promoted, 15, 3)
    scale, minimum = encoded["scales"].double(), encoded["minimums"].double()
    torch.testing.assert_close(scale, value_range.double() / levels, rtol=2e-2, atol=1e-3)
    allowed = scale / 2 + levels * scale * 2**-10 + minimum.abs() * 2**-10 + 1e-6
    error = (codec.decode(encoded, torch.float64) - x.double()).abs().unflatten(2, (-1, 32)).amax(3)
    assert bool((error <= allowed).all())


def test_r13_r22_bytes_are_exact_and_indices_are_counted() -> None:
    spec = parse_format("kivi-2-promoted").keys
    # 2 bits for all, 2 more for 16 of 128, two float16 a channel of 32 tokens, 16 index bytes a block.
    assert stored_bits_per_value(spec, 8, 128) == 2 + 2 * 16 / 128 + 32 / 32 + 16 * 8 / (32 * 128)
    assert stored_bits_per_value(parse_side("kivi-mix:channel32/promoted=4"), 8, 320) == (
        2 + 2 * 4 / 320 + 32 / 32 + 4 * 16 / (32 * 320)
    )


def test_promotion_buys_more_than_its_bits() -> None:
    """On keys with some loud channels: against 2 bit for all, and against 3 bit for all, which is larger."""
    x = torch.randn(2, 2, 256, 64, generator=torch.Generator().manual_seed(0))
    x[..., ::8] *= 20
    error = {}
    for text in ("kivi-mix:channel32", "int2:channel32", "int3:channel32"):
        codec = quantizer(parse_side(text))
        error[text] = float((codec.decode(codec.encode(x).streams) - x).norm() / x.norm())
    assert error["kivi-mix:channel32"] < 0.5 * error["int2:channel32"]
    assert error["kivi-mix:channel32"] < error["int3:channel32"]
    bits = {text: stored_bits_per_value(parse_side(text), 2, 64) for text in error}
    assert bits["int2:channel32"] < bits["kivi-mix:channel32"] < bits["int3:channel32"]


def test_equal_ranges_promote_the_lower_channels() -> None:
    x = torch.tensor([0.0, 1.0]).repeat(16)[None, None, :, None].expand(1, 1, 32, 64)
    encoded = quantizer(parse_side("kivi-mix:channel32/promoted=8")).encode(x).streams
    assert encoded["promoted_channels"].flatten().tolist() == list(range(8))


def test_b46_wide_heads_keep_their_uint16_indices_in_the_store() -> None:
    x = keys(dim=320, tokens=300)
    kv_format = parse_format("kv=kivi-mix:channel32,exact=f32")
    geometry = LayerGeometry(kv_heads=2, head_dim=320, value_dim=320)
    store = SideStore(head_groups(kv_format, 0, geometry)[0].keys, 2, 320, "float32")
    for chunk in x.split(70, dim=2):
        store.append(chunk)
    codec = quantizer(kv_format.keys)
    assert torch.equal(store.read()[:, :, :288], codec.decode(codec.encode(x[:, :, :288]).streams))


def test_b32_counts_that_do_not_fit_are_refused_with_a_way_out() -> None:
    with pytest.raises(GeometryError, match="head_dim 64 has fewer than 128 channels; use promoted=64"):
        streams(parse_side("kivi-mix:channel32/promoted=128"), 2, 64)
    with pytest.raises(FormatError, match=r"promoted='6' is not one of its values: .* a multiple of 4"):
        parse_side("kivi-mix:channel32/promoted=6")
