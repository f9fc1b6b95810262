"""The byte calculator: published sizes, owners, denominators, stated assumptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.kv_format import head_groups
from kvassay.core.layout import static_nbytes
from kvassay.core.ledger import predict_ledger
from kvassay.core.paging import side_pages


def geometry(layers=2, kv_heads=8, head_dim=128, window=None) -> CacheGeometry:
    layer = LayerGeometry(kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, sliding_window=window)
    return CacheGeometry(model_type="test", query_heads=kv_heads, layers=(layer,) * layers)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f16", 16),
        ("int8-token-head", 8.25),
        ("fp8-e4m3", 8),
        ("int4-g64", 4.5),
        ("int4-g32", 5),
        ("q8_0", 8.5),
        ("q4_0", 4.5),
    ],
)
def test_r22_bits_at_head_size_128(name, bits) -> None:
    """Stored bits of the engines' formats at whole pages, as METHODS lists them."""
    ledger = predict_ledger(geometry(), parse_format(name), tokens=1024)
    paging = ledger.owner_nbytes(Owner.BLOCK_TABLE)
    assert 16 * (ledger.persistent_nbytes - paging) / ledger.float16_nbytes == bits
    # 16 bytes for each page of keys and of values, in the two layers.
    assert paging == 2 * 2 * 1024 // 64 * 16


def test_r15_r27_windows_and_sinks_cost_what_they_store() -> None:
    ledger = predict_ledger(geometry(layers=1), parse_format("int4-g64,recent=100,sinks=4"), tokens=1000)
    assert ledger.keys_nbytes[Owner.WINDOW] == 100 * 8 * 128 * 2
    assert ledger.keys_nbytes[Owner.SINKS] == 4 * 8 * 128 * 2
    assert ledger.keys_nbytes[Owner.CODES] == 896 * 8 * 128 // 2


def test_r14_per_channel_keys_wait_for_whole_blocks() -> None:
    ledger = predict_ledger(geometry(layers=1), parse_format("kivi-2,recent=10"), tokens=100)
    assert ledger.keys_nbytes[Owner.WINDOW] == (100 - 64) * 8 * 128 * 2
    assert ledger.values_nbytes[Owner.WINDOW] == 10 * 8 * 128 * 2


@pytest.mark.parametrize(("tokens", "keys_pages", "values_pages"), [(511, 4, 3), (512, 2, 2), (513, 3, 3), (543, 4, 3)])
def test_the_tail_costs_the_pages_that_hold_tokens(tokens, keys_pages, values_pages) -> None:
    """Behind 512 tokens 32 wait on each side, in two pages of 16; behind 511 keys wait for the rest of their block."""
    plan = head_groups(parse_format("kivi-4,recent=32"), 0, geometry().layers[0])[0]
    assert side_pages(plan.keys, tokens).tail_pages == keys_pages
    assert side_pages(plan.values, tokens).tail_pages == values_pages


def test_the_headline_format_at_512_tokens_of_a_small_model() -> None:
    """SmolLM2-135M's shape: 3 KV heads of 64 channels. Two tail pages a side, and not the four that keys had before."""
    shape = geometry(layers=30, kv_heads=3, head_dim=64)
    bits = 16 * predict_ledger(shape, parse_format("kivi-4,recent=32"), tokens=512).ratio_to_float16
    assert round(bits, 3) == 6.015


def test_r16_padding_of_the_last_page_is_counted() -> None:
    ledger = predict_ledger(geometry(layers=1), parse_format("int8-token-head"), tokens=65)
    assert ledger.keys_nbytes[Owner.PADDING] == 63 * 8 * (128 + 4)


def test_b37_sliding_layers_are_bounded() -> None:
    short = predict_ledger(geometry(window=512), parse_format("q8_0"), tokens=600)
    long = predict_ledger(geometry(window=512), parse_format("q8_0"), tokens=60_000)
    assert long.persistent_nbytes == short.persistent_nbytes


def test_r88_r89_both_denominators_are_named() -> None:
    ledger = predict_ledger(geometry(), parse_format("int8-token-head"), tokens=64)
    assert ledger.float32_nbytes == 2 * ledger.float16_nbytes == 64 * 2 * 8 * 128 * 2 * 4


def test_r25_r86_assumptions_and_exclusions_are_stated() -> None:
    text = " ".join(predict_ledger(geometry(), parse_format("f16"), tokens=1).assumptions)
    for word in ("alignment", "excluded", "pages of 64 tokens", "transient"):
        assert word in text


@given(
    st.sampled_from([preset.name for preset in PRESETS]),
    st.integers(1, 700),
    st.integers(1, 4),
    st.integers(0, 8),
    st.integers(0, 200),
)
def test_bytes_are_linear_in_rows_and_every_token_is_somewhere(name, tokens, batch, sinks, recent) -> None:
    kv_format = parse_format(f"{name},sinks={sinks},recent={recent}")
    one = predict_ledger(geometry(), kv_format, tokens)
    many = predict_ledger(geometry(), kv_format, tokens, batch)
    # Scales that belong to a layer, not to a row.
    static = 2 * sum(sum(static_nbytes(spec, 8, 128).values()) for spec in (kv_format.keys, kv_format.values))
    assert many.persistent_nbytes - static == batch * (one.persistent_nbytes - static)
    stored = one.persistent_nbytes - one.owner_nbytes(Owner.PADDING)
    assert stored >= tokens * 2 * 2 * 8 * 128 * kv_format.keys.num_bits // 8 // 2


def test_an_empty_cache_has_no_ledger() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        predict_ledger(geometry(), parse_format("f16"), tokens=0)
