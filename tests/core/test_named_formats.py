"""Formats as their papers describe them, by name (R6), and bytes that small things cost (R17, R26)."""

from __future__ import annotations

import pytest

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.ledger import predict_ledger
from kvassay.core.paging import (
    ALIGNMENT,
    PAGE_RECORD_NBYTES,
    PAGE_TOKENS,
    TABLE_ENTRY_NBYTES,
    exact_page_layout,
    page_layout,
)


def geometry(head_dim: int = 64, kv_heads: int = 2, layers: int = 3) -> CacheGeometry:
    layer = LayerGeometry(kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim)
    return CacheGeometry(model_type="llama", query_heads=kv_heads, layers=(layer,) * layers)


@pytest.mark.parametrize(("name", "bits"), [("kivi-4", 4), ("kivi-2", 2)])
def test_r6_kivi_has_keys_by_channel_values_by_token_and_a_full_precision_residual(name: str, bits: int) -> None:
    """KIVI, arXiv:2402.02750: asymmetric; keys in groups of tokens per channel, values of channels per token."""
    kv_format = parse_format(name)
    keys, values = kv_format.keys, kv_format.values
    assert (keys.num_bits, values.num_bits) == (bits, bits)
    assert keys.granularity.value == "channel"
    assert values.granularity.value == "group", "groups of channels within one token"
    assert not keys.symmetric
    assert not values.symmetric
    assert kv_format.recent > 0
    ledger = predict_ledger(geometry(), kv_format, 500)
    assert ledger.owner_nbytes(Owner.WINDOW) > 0
    for side in (ledger.keys_nbytes, ledger.values_nbytes):
        assert side[Owner.ZERO_POINTS if Owner.ZERO_POINTS in side else Owner.SCALES] > 0


@pytest.mark.parametrize("name", ["int8-token-head", "kivi-4,recent=32", "f16"])
def test_r17_block_tables_are_counted_page_by_page(name: str) -> None:
    """Each page costs its entry in a table and its record; a longer cache pays for each further page."""
    one = TABLE_ENTRY_NBYTES + PAGE_RECORD_NBYTES
    tables = [
        predict_ledger(geometry(), parse_format(name), pages * PAGE_TOKENS, batch=2).owner_nbytes(Owner.BLOCK_TABLE)
        for pages in (4, 8)
    ]
    assert tables[1] - tables[0] == 4 * one * 2 * 3 * 2, "pages x (entry and record) x rows x layers x sides"
    assert all(nbytes % one == 0 for nbytes in tables)


@pytest.mark.parametrize("head_dim", [48, 64, 80, 96, 128])
def test_r26_alignment_is_a_stated_parameter_and_its_bytes_are_counted(head_dim: int) -> None:
    """Each array of a page begins at a multiple of ALIGNMENT; the gaps are padding, to the byte."""
    kv_format = parse_format("k=int3:token/group16,v=int5:token/group16")
    for kv_heads in (1, 2, 3):
        for spec, side in ((kv_format.keys, "keys"), (kv_format.values, "values")):
            layout = page_layout(spec, kv_heads, head_dim, side)
            assert all(region.offset % ALIGNMENT == 0 for region in layout.regions)
            filled = sum(region.stream.block_nbytes * layout.blocks for region in layout.regions)
            assert 0 <= layout.nbytes - filled < ALIGNMENT * len(layout.regions) * kv_heads
        found = predict_ledger(geometry(head_dim, kv_heads, 1), kv_format, PAGE_TOKENS)
        gaps = sum(
            page_layout(spec, kv_heads, head_dim, side).nbytes
            - sum(
                region.stream.block_nbytes * (PAGE_TOKENS // spec.tokens_per_block)
                for region in page_layout(spec, kv_heads, head_dim, side).regions
            )
            for spec, side in ((kv_format.keys, "keys"), (kv_format.values, "values"))
        )
        assert found.owner_nbytes(Owner.PADDING) == gaps
    assert f"{ALIGNMENT} bytes" in " ".join(found.assumptions)
    assert exact_page_layout("float16", 1, head_dim, "keys", PAGE_TOKENS).nbytes % ALIGNMENT == 0
