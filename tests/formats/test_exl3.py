"""Midpoint grids and exllamav3's cache format."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.layout import streams
from kvassay.errors import FormatError, GeometryError
from kvassay.formats import quantizer
from kvassay.formats.packing import unpack_codes


def codec(text):
    return quantizer(parse_format(f"kv={text}").keys)


def values(dim=64, tokens=96, seed=0) -> torch.Tensor:
    return torch.randn(1, 2, tokens, dim, generator=torch.Generator().manual_seed(seed))


def hadamard_32() -> np.ndarray:
    index = np.arange(32)
    return (-1.0) ** np.bitwise_count(index[:, None] & index[None, :]) / math.sqrt(32)


@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_and_scales_follow_the_definition(bits) -> None:
    """A second implementation by matrix in float64; float32 may differ only on the edge of a cell."""
    x = values()
    exl3 = codec(f"exl3-{bits}")
    encoded = exl3.encode(x).streams
    rotated = x.double().numpy().reshape(-1, 32) @ hadamard_32()
    scale = np.abs(rotated).max(1, keepdims=True)
    position = 2 ** (bits - 1) * (rotated / scale + 1)
    expected = np.clip(np.floor(position), 0, 2**bits - 1)

    found = unpack_codes(encoded["codes"].flatten(2, 3), bits).numpy().reshape(-1, 32)
    off_edge = np.abs(position - np.round(position)) > 1e-4
    assert np.array_equal(found[off_edge], expected[off_edge])
    assert off_edge.mean() > 0.9
    stored_scale = encoded["scales"].numpy().reshape(-1, 1)
    assert np.array_equal(stored_scale, scale.astype(np.float32).astype(np.float16))

    decoded = (stored_scale.astype(np.float64) * ((2.0 * found + 1) / 2**bits - 1)) @ hadamard_32()
    assert np.allclose(exl3.decode(encoded).numpy().reshape(-1, 32), decoded, rtol=0, atol=4e-6)


@pytest.mark.parametrize("side", ["exl3-2", "exl3-4", "exl3-8", "exl3-4/compand=0.65"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_r75_a_group_errs_by_half_a_cell_at_most(side, size) -> None:
    """In the rotated domain; the rotation keeps the norm, so a group of 32 errs by root 32 half cells at most."""
    x = values(seed=3) * size
    exl3 = codec(side)
    encoded = exl3.encode(x).streams
    error = (exl3.decode(encoded, torch.float64) - x.double()).unflatten(-1, (-1, 32)).norm(dim=-1)
    scale = encoded["scales"].double()
    widest = 2**-exl3.spec.num_bits * (1 if "compand" not in side else 3 - 2 * 0.65)  # f'(1) of the compander
    assert bool((error <= 32**0.5 * scale * (widest + 2**-10)).all())


@pytest.mark.parametrize("side", ["midpoint-1:token-head", "midpoint-3:group32", "midpoint-8:group64/scale=f32"])
def test_r75_midpoint_errs_by_half_a_cell_at_most(side) -> None:
    x = values(seed=4) * 7
    midpoint = codec(side)
    encoded = midpoint.encode(x).streams
    scale = encoded["scales"].double().repeat_interleave(midpoint.spec.group_size or 64, dim=-1)
    error = (midpoint.decode(encoded, torch.float64) - x.double()).abs()
    assert bool((error <= scale * (2**-midpoint.spec.num_bits + 1e-6)).all())
    assert len(unpack_codes(encoded["codes"], midpoint.spec.num_bits).unique()) == 2**midpoint.spec.num_bits


def test_exl3_is_the_midpoint_grid_on_a_rotation_of_32() -> None:
    """They differ by what the rounding of the scale moves: the engine rounds it after the codes are computed."""
    x = values(tokens=512)
    one, other = codec("exl3-4"), codec("midpoint-4:group32/had=32")
    left, right = one.encode(x).streams, other.encode(x).streams
    assert float((left["codes"] != right["codes"]).float().mean()) < 0.02
    assert float((one.decode(left) - other.decode(right)).norm() / x.norm()) < 0.02


def test_the_rotation_spreads_an_outlier_over_its_group_and_no_further() -> None:
    x = values()
    x[..., 5] *= 40
    error = (codec("exl3-4").decode(codec("exl3-4").encode(x).streams) - x).square().mean((0, 1, 2))
    assert float(error[:32].min()) > 5 * float(error[32:].max())
    plain = (codec("midpoint-4:group32").decode(codec("midpoint-4:group32").encode(x).streams) - x).square().mean()
    assert float(error.mean()) < 0.1 * float(plain)


def test_the_compander_inverts_by_cardano_as_the_engine_does() -> None:
    """`LMCubic`: t solves a·t + (1 − a)·t³ = y/s, and the code is the cell of t."""
    x, a, bits = values(tokens=32), 0.65, 4
    encoded = codec("exl3-4/compand=0.65").encode(x).streams
    rotated = x.double().numpy().reshape(-1, 32) @ hadamard_32()
    share = rotated / np.abs(rotated).max(1, keepdims=True)
    half_q, third_p = share / (1 - a) / 2, a / (1 - a) / 3
    root = np.sqrt(half_q**2 + third_p**3)
    t = np.cbrt(half_q + root) + np.cbrt(half_q - root)
    position = 2 ** (bits - 1) * (t + 1)
    found = unpack_codes(encoded["codes"].flatten(2, 3), bits).numpy().reshape(-1, 32)
    off_edge = np.abs(position - np.round(position)) > 1e-4
    assert np.array_equal(found[off_edge], np.clip(np.floor(position), 0, 15)[off_edge])


def test_the_compander_is_part_of_the_identity_and_helps_on_gaussian_data() -> None:
    """R8: equal bytes, other numbers."""
    x = values(tokens=1024)
    assert parse_format("kv=exl3-3").digest != parse_format("kv=exl3-3/compand=0.65").digest
    assert parse_format("kv=exl3-3/compand=0.0").digest == parse_format("kv=exl3-3").digest

    def error(side: str) -> float:
        return float((codec(side).decode(codec(side).encode(x).streams) - x).norm())

    assert error("exl3-3/compand=0.65") < error("exl3-3")


def test_b28_a_zero_group_is_stored_with_scale_zero_and_decodes_to_zero() -> None:
    x = values()
    x[..., :32] = 0
    for side in ("exl3-4", "midpoint-4:group32"):
        encoded = codec(side).encode(x).streams
        assert int((encoded["scales"] == 0).sum()) == 192
        found = codec(side).decode(encoded)
        assert not bool(found[..., :32].any())
        assert bool(found[..., 32:].any())


def test_b32_a_head_size_that_groups_of_32_do_not_divide_is_refused() -> None:
    with pytest.raises(GeometryError, match="head_dim 80 is not a multiple of group 32; use group 20 or 80"):
        streams(codec("exl3-4").spec, 2, 80)


@pytest.mark.parametrize("text", ["exl3-4/compand=1", "exl3-4/compand=-0.1", "exl3-4/compand=nan", "exl3-9"])
def test_what_the_engine_does_not_have_is_refused(text) -> None:
    with pytest.raises(FormatError):
        parse_format(f"kv={text}")
