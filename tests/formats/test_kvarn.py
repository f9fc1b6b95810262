"""KVarN: balancing against its definition, error bound, bytes, and what it is for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.layout import stored_bits_per_value, streams
from kvassay.core.ledger import predict_ledger
from kvassay.core.side_names import parse_side
from kvassay.errors import FormatError, GeometryError, RangeError
from kvassay.formats import quantizer
from kvassay.formats.kvarn import column_factors


def loud_values(seed=0, tokens=128, dim=128) -> torch.Tensor:
    """Tokens and channels of very unequal size, as keys have them: `[1, 2, tokens, dim]`."""
    rng = torch.Generator().manual_seed(seed)
    per_token = torch.randn(1, 2, tokens, 1, generator=rng).exp()
    per_channel = torch.randn(1, 2, 1, dim, generator=rng).exp()
    return torch.randn(1, 2, tokens, dim, generator=rng) * per_token * per_channel


def relative_error(text: str, x: torch.Tensor) -> float:
    codec = quantizer(parse_side(text))
    return float((codec.decode(codec.encode(x).streams) - x).norm() / x.norm())


class State(NamedTuple):
    imbalance: float
    columns: np.ndarray


def states_in_logarithms(tile: np.ndarray, rounds: int) -> list[State]:
    """The start and all rounds by the definition: logarithms, numpy's standard deviation, one tile at a time."""
    log_columns, log_rows = np.zeros((1, tile.shape[1])), np.zeros((tile.shape[0], 1))

    def state() -> State:
        by_axis = [(tile / np.exp(log_columns + log_rows)).std(axis=axis, ddof=1) for axis in (0, 1)]
        return State(sum(std.max() / max(std.min(), 1e-8) for std in by_axis), np.exp(log_columns))

    states = [state()]
    for _ in range(rounds):
        std = (tile / np.exp(log_columns + log_rows)).std(axis=0, ddof=1, keepdims=True)
        log_columns = np.clip(log_columns + np.log(np.clip(std, 1e-3, 1e3)), -0.3, 10.0)
        std = (tile / np.exp(log_columns + log_rows)).std(axis=1, ddof=1, keepdims=True)
        log_rows = np.clip(log_rows + np.log(np.clip(std, 1e-3, 1e3)), -0.3, 10.0)
        states.append(state())
    return states


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(2, 70),
    columns=st.integers(2, 70),
    rounds=st.integers(0, 12),
    spread=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_column_factors_are_those_of_the_definition(seed, rows, columns, rounds, spread) -> None:
    rng = np.random.default_rng(seed)
    tile = rng.normal(size=(rows, columns))
    tile *= np.exp(spread * rng.normal(size=(rows, 1)) + spread * rng.normal(size=(1, columns)))
    found = column_factors(torch.from_numpy(tile)[None], rounds)[0].numpy()
    states = states_in_logarithms(tile, rounds)
    least = min(state.imbalance for state in states)
    # Rounding may part states that are equally balanced, so any of those will do.
    best = [state.columns for state in states if state.imbalance <= least * (1 + 1e-6)]
    assert any(np.allclose(found, columns, rtol=1e-6, atol=0) for columns in best)


@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_r75_error_stays_within_half_a_step_and_the_metadata_term(axis, bits) -> None:
    x = loud_values()
    codec = quantizer(parse_side(f"kvarn-{bits}:tile128/axis={axis}"))
    encoded = codec.encode(x).streams
    error = (codec.decode(encoded, torch.float64) - x.double()).abs()
    scale, minimum, columns = (encoded[name].double().flatten(2) for name in ("scales", "minimums", "column_scales"))
    bound = scale / 2 + (2**bits - 1) * scale * 2**-10 + minimum.abs() * 2**-10 + 2**-24
    tile = bound.unsqueeze(-1) * columns.unsqueeze(-2)
    allowed = (tile.transpose(-1, -2) if axis == "channel" else tile) + float(x.abs().max()) * 1e-6
    assert bool((error <= allowed).all())


def test_r14_r22_the_preset_stores_3_375_bits_in_the_body_and_4_56_at_2k_tokens() -> None:
    kv_format = parse_format("kvarn")
    bits = [stored_bits_per_value(spec, 8, 128) for spec in (kv_format.keys, kv_format.values)]
    assert bits == [4.375, 2.375]
    layer = LayerGeometry(kv_heads=8, head_dim=128, value_dim=128)
    geometry = CacheGeometry(model_type="test", query_heads=8, layers=(layer,))
    around_2k = [predict_ledger(geometry, kv_format, 1984 + more) for more in range(128)]
    held = [
        16 * (ledger.persistent_nbytes - ledger.owner_nbytes(Owner.PADDING) - ledger.owner_nbytes(Owner.BLOCK_TABLE))
        for ledger in around_2k
    ]
    bits = [nbytes / ledger.float16_nbytes for nbytes, ledger in zip(held, around_2k, strict=True)]
    assert round(sum(bits) / 128, 2) == 4.56


def test_balancing_beats_plain_rounding_on_unequal_tokens_and_channels() -> None:
    """Keys per channel and values per token, each against the same rounding without balancing."""
    x = loud_values()
    assert relative_error("kvarn-4:tile128", x) < 0.75 * relative_error("kvarn-4:tile128/rounds=0", x)
    token = "kvarn-2:tile128/axis=token"
    assert relative_error(token, x) < 0.75 * relative_error(f"{token}/rounds=0", x)
    plain = relative_error("int4:channel128", x)
    assert abs(relative_error("kvarn-4:tile128/rounds=0", x) - plain) < 1e-3  # int rounds its 16-bit scales outward


def test_the_start_is_kept_where_no_round_improves_on_it() -> None:
    """Equal rows and columns: every further state is at best equal, and the decoded values stay as good."""
    x = torch.randn(1, 1, 128, 128, generator=torch.Generator().manual_seed(2))
    assert relative_error("kvarn-4:tile128", x) <= 1.02 * relative_error("kvarn-4:tile128/rounds=0", x)


@pytest.mark.parametrize(
    ("text", "dim", "message"),
    [
        ("kvarn-2:tile128/axis=token", 66, "head_dim 66 at 2 bits does not fill whole bytes; use axis=channel"),
        ("kvarn-3:tile12", 64, "tile 12 at 3 bits does not fill whole bytes; use tile128"),
        ("kvarn-4:tile1", 64, "a tile of 1 tokens x 64 channels has no spread along an axis; use tile128"),
    ],
)
def test_b32_shapes_that_do_not_fit_are_refused_before_any_token(text, dim, message) -> None:
    with pytest.raises(GeometryError) as caught:
        streams(parse_side(text), 2, dim)
    assert message in str(caught.value)


def test_options_that_are_not_kvarns_are_refused() -> None:
    with pytest.raises(FormatError, match="axis='head' is not one of its values: channel"):
        parse_side("kvarn-4:tile128/axis=head")
    with pytest.raises(FormatError, match="rounds='99' is not one of its values"):
        parse_side("kvarn-4:tile128/rounds=99")
    with pytest.raises(FormatError, match="does not take granularity 'group32'; it takes tileT"):
        parse_side("kvarn-4:group32")


def test_overflow_of_the_stored_minimum_is_refused() -> None:
    with pytest.raises(RangeError, match="does not fit float16; use a format with float32 scales"):
        quantizer(parse_side("kvarn-4:tile32")).encode(torch.full((1, 1, 32, 64), 1e7))
