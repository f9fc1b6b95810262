"""Lloyd-Max codebooks: levels, norms, rates, and the engine presets built from them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.layout import stored_bits_per_value
from kvassay.errors import RangeError
from kvassay.formats import quantizer
from kvassay.formats.lloyd import POSITIVE_LEVELS, lloyd_levels
from kvassay.formats.ordered_sum import ordered_sum, row_norm

PUBLISHED_LEVELS = {
    1: (0.7979,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9423, 1.2562, 1.6181, 2.0690, 2.7326),
}
MSE = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.009501}


def codec(text):
    return quantizer(parse_format(f"kv={text}").keys)


def round_trip(text: str, x: torch.Tensor) -> torch.Tensor:
    return codec(text).decode(codec(text).encode(x).streams, x.dtype)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def density(x: float) -> float:
    return 0.0 if math.isinf(x) else math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def upper_tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def lloyd_iteration(num_bits: int) -> list[float]:
    """Positive levels: each moves to the mean of its cell, cells end half way between levels, until nothing moves."""
    count = 2 ** (num_bits - 1)
    levels = [3.0 * (index + 0.5) / count for index in range(count)]
    for _ in range(5000):
        edges = [0.0, *((low + high) / 2 for low, high in pairwise(levels)), math.inf]
        moved = [(density(low) - density(high)) / (upper_tail(low) - upper_tail(high)) for low, high in pairwise(edges)]
        step = max(abs(new - old) for new, old in zip(moved, levels, strict=True))
        levels = moved
        if step < 1e-14:
            break
    return levels


@pytest.mark.parametrize("num_bits", [1, 2, 3, 4])
def test_levels_are_the_fixed_point_of_lloyds_iteration(num_bits) -> None:
    assert POSITIVE_LEVELS[num_bits] == pytest.approx(lloyd_iteration(num_bits), abs=1e-10)
    assert POSITIVE_LEVELS[num_bits] == pytest.approx(PUBLISHED_LEVELS[num_bits], abs=1e-4)
    assert lloyd_levels(num_bits) == tuple(-level for level in reversed(lloyd_levels(num_bits)))


@pytest.mark.parametrize("num_bits", [1, 2, 3, 4])
def test_squared_error_on_gaussian_data(num_bits) -> None:
    """D=128, float16 norm: within 2% of the codebook's own error. Knowing the norm of a row is worth about 1/D."""
    x = gaussian(2, 2, 2048, 128)
    error = (round_trip(f"lloyd-{num_bits}:token-head", x) - x).square().mean() / x.square().mean()
    assert float(error) == pytest.approx(MSE[num_bits], rel=0.02)


@pytest.mark.parametrize("num_bits", [2, 3, 4])
def test_a_corrected_norm_errs_least_in_every_row(num_bits) -> None:
    """Same codes, best factor; both up to the rounding of what is stored."""
    x = gaussian(1, 2, 512, 128, seed=1)
    errors = {
        norm: (round_trip(f"lloyd-{num_bits}:token-head/scale=f32/norm={norm}", x) - x).square().sum(-1)
        for norm in ("plain", "corrected", "preserved")
    }
    assert bool((errors["corrected"] <= errors["plain"] * (1 + 1e-6)).all())
    assert bool((errors["corrected"] <= errors["preserved"] * (1 + 1e-6)).all())
    assert float(errors["corrected"].mean()) < float(errors["plain"].mean())


@pytest.mark.parametrize("num_bits", [2, 3, 4])
def test_a_preserved_norm_is_the_rows_own(num_bits) -> None:
    """vLLM's norm correction: decoded rows keep their norm, and half of the shrinkage goes."""
    x = gaussian(1, 2, 512, 128, seed=2)
    found = round_trip(f"lloyd-{num_bits}:token-head/norm=preserved", x)
    assert bool(((found.norm(dim=-1) / x.norm(dim=-1) - 1).abs() <= 2**-11 + 1e-6).all())

    def slope(decoded: torch.Tensor) -> float:
        return float((decoded * x).sum() / x.square().sum())

    plain = round_trip(f"lloyd-{num_bits}:token-head", x)
    assert slope(plain) == pytest.approx(1 - MSE[num_bits], abs=0.004)
    assert slope(found) == pytest.approx(math.sqrt(1 - MSE[num_bits]), abs=0.004)


def test_a_random_rotation_repairs_hostile_keys_and_a_plain_one_a_spike_only() -> None:
    """A channel with a large bias: unrotated, the codebook has no level for it. A constant row: a rotation without
    signs turns it into a spike."""
    x = gaussian(1, 2, 64, 128, seed=3)
    x[..., 9] += 50

    def error(side: str, rows: torch.Tensor) -> float:
        return float((round_trip(side, rows) - rows).norm() / rows.norm())

    assert error("lloyd-4:token-head", x) > 0.7
    assert error("lloyd-4:token-head/had/seed=1", x) < 0.15
    constant = torch.full((1, 1, 4, 128), 3.0)
    assert error("lloyd-4:token-head/had", constant) > 0.7
    assert error("lloyd-4:token-head/had/seed=1", constant) < 0.15


def test_norms_beyond_float16_are_refused_and_fit_float32() -> None:
    x = gaussian(1, 1, 4, 64).float() * 1e6
    with pytest.raises(RangeError, match=r"a norm of .* does not fit float16; use a format with float32 scales"):
        codec("lloyd-4:token-head").encode(x)
    assert float((round_trip("lloyd-4:token-head/scale=f32", x) - x).norm() / x.norm()) < 0.11


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_b28_no_square_overflows_or_vanishes(size) -> None:
    """Squares of 1e30 and 1e-30 leave float32; the norm of the row does not."""
    x = gaussian(1, 1, 8, 64).float() * size
    found = round_trip("lloyd-4:token-head/scale=f32/norm=corrected", x)
    relative = ((found.double() - x.double()).norm() / x.double().norm()).item()
    assert 0.05 < relative < 0.15


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**31))
def test_b46_ordered_sums_do_not_depend_on_neighbours_or_strides(channels, seed) -> None:
    x = torch.randn(5, channels, generator=torch.Generator().manual_seed(seed))
    whole = ordered_sum(x)
    assert torch.equal(whole[2:3], ordered_sum(x[2:3].clone()))
    assert torch.equal(whole, ordered_sum(x.T.contiguous().T))
    exact = torch.tensor([math.fsum(row.tolist()) for row in x])
    assert torch.allclose(whole.squeeze(-1), exact, atol=1e-4)
    assert torch.allclose(row_norm(x).squeeze(-1), x.norm(dim=-1), rtol=1e-6)


@pytest.mark.parametrize(
    ("preset", "key_bits", "value_bits"),
    [
        ("turboquant-k8v4", 8.0, 4.25),
        ("turboquant-4bit-nc", 4.125, 4.25),
        ("turboquant-k3v4-nc", 3.125, 4.25),
        ("turboquant-3bit-nc", 3.125, 3.25),
        ("lmdeploy-42", 4.25, 2.125),
        ("turboquant-mse-4", 4.125, 4.125),
        ("exl3-6", 6.5, 6.5),
        ("kvquant-nf4", 4.4375, 4.4375),
    ],
)
def test_engine_presets_cost_what_their_engines_store(preset, key_bits, value_bits) -> None:
    """R22, at D=128. vLLM's slots: `key_packed_size` and `value_packed_size` of its TurboQuantConfig."""
    kv_format = parse_format(preset)
    assert stored_bits_per_value(kv_format.keys, 8, 128) == key_bits
    assert stored_bits_per_value(kv_format.values, 8, 128) == value_bits
