"""Operations on rows and tokens that were forgotten on one of several arrays, or that did nothing and said nothing."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.side_store import RECORDED_TOKENS
from tests.cache.cache_states import DIM, HEADS, append, held, new_cache, sample
from tests.cache.reference_cache import ReferenceCache
from tests.cache.test_operations import small_config

TEXTS = ["int4-g32,recent=7", "kivi-2,recent=20,sinks=2", "q8_0", "k=int4:channel8,v=int2:group16", "f16"]


def both(cache: QuantizedCache, lists: ReferenceCache, tokens: int, seed: int) -> None:
    rows = len(lists.rows)
    given = [(sample(rows, tokens, seed + layer), sample(rows, tokens, seed + 50 + layer)) for layer in range(2)]
    lists.append(given)
    for layer, (keys, values) in enumerate(given):
        cache.update(keys, values, layer)


def require_equal(cache: QuantizedCache, lists: ReferenceCache) -> None:
    for layer in range(2):
        _, offset = cache.get_mask_sizes(0, layer)
        for side, seen in enumerate((cache.layers[layer].keys, cache.layers[layer].values)):
            assert seen.shape[0] == cache.batch_size == len(lists.rows)
            assert torch.equal(seen, lists.read(layer, side, offset))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("operation", ["reorder", "select", "repeat"])
@pytest.mark.parametrize("steps", [0, 1, 40], ids=["after prefill", "after a step", "after a flush"])
def test_b44_rows_move_with_all_their_arrays(text, operation, steps) -> None:
    """Codes, scales, minimums, window and sinks follow the same rows, and the next tokens join them."""
    cache = new_cache(text)
    lists = ReferenceCache(cache.kv_format, cache.geometry, [0, 0, 0], RECORDED_TOKENS)
    both(cache, lists, 61, 1)
    for step in range(steps):
        both(cache, lists, 1, 100 + step)
    bytes_of_a_row = cache.ledger().persistent_nbytes / 3
    rows = {"reorder": [2, 0, 1], "select": [1], "repeat": [0, 0, 1, 1, 2, 2]}[operation]
    if operation == "repeat":
        cache.batch_repeat_interleave(2)
    else:
        (cache.reorder_cache if operation == "reorder" else cache.batch_select_indices)(torch.tensor(rows))
    lists.select(rows)
    require_equal(cache, lists)
    ledger = cache.ledger()
    assert ledger.batch == len(rows)
    # Repeated rows share their pages; of one selected row the others' pages wait to be used again.
    assert ledger.persistent_nbytes <= max(3, len(rows)) * bytes_of_a_row
    both(cache, lists, 1, 900)
    both(cache, lists, 19, 950)
    require_equal(cache, lists)


@pytest.mark.parametrize("text", TEXTS)
def test_b47_crop_returns_what_it_removed_and_removes_it(text) -> None:
    cache = new_cache(text)
    append(cache, 38, 1, rows=2)
    full_before = [side.clone() for side in held(cache)[:2]]
    for asked in (0, 1, 7, 9, 500):
        before = cache.get_seq_length()
        removed = cache.crop(-asked)
        assert removed == min(asked, before) == before - cache.get_seq_length()
        assert [layer.get_seq_length() for layer in cache.layers] == [before - removed] * 2
        if before > removed:
            for one, other in zip(held(cache)[:2], full_before, strict=True):
                assert torch.equal(one, other[:, :, : before - removed])


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("padding", [None, [0, 5]])
def test_b49_the_oldest_tokens_cannot_be_dropped_and_positions_never_move(text, padding) -> None:
    """Keys are stored with their position in them. What older caches took as "keep n" or "drop the first n" is refused
    before anything changes, and trimming takes padding alone."""
    cache = new_cache(text, padding)
    append(cache, 36, 1, rows=2)
    before = [side.clone() for side in held(cache)]
    with pytest.raises(ValueError, match=r"crop\(-n\) removes the last n tokens"):
        cache.crop(12)
    assert cache.trim_padding() == 0, "one row has no padding"
    assert all(torch.equal(one, other) for one, other in zip(before, held(cache), strict=True))


def _decode(cache: QuantizedCache, rows: int, seed: int) -> torch.Tensor:
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 1
    outs = []
    for layer in range(2):
        query = sample(1, 1, 700 + seed + layer)
        keys, values = sample(1, 1, seed + layer), sample(1, 1, seed + 50 + layer)
        seen = cache.update(*(each.expand(rows, -1, -1, -1) for each in (keys, values)), layer)
        outs.append(packed_attention(module, query.expand(rows, -1, -1, -1), *seen, None, scaling=0.1)[0])
    return torch.cat(outs)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("path", ["tiled", "decoded"])
def test_b50_a_batch_of_one_equals_the_plain_cache_bit_for_bit(text, path) -> None:
    """One row as a batch engine handles it (padding given, joined and taken out of a batch) beside one row plain."""

    def make(**options) -> QuantizedCache:
        config = small_config()
        config._attn_implementation = "kvassay"
        return QuantizedCache(config, text, attention=path, **options)

    def prompt(cache: QuantizedCache) -> QuantizedCache:
        append(cache, 70, 1, rows=1)
        return cache

    plain, batch = prompt(make()), prompt(make(left_padding=[0]))
    joined, other = make(), make()
    append(other, 33, 9, rows=1)
    joined.take_rows(prompt(make()))
    joined.take_rows(other)
    joined.batch_select_indices(torch.tensor([0]))
    for step in range(30):
        expected = _decode(plain, 1, 100 + step)
        assert torch.equal(_decode(batch, 1, 100 + step), expected)
        assert torch.equal(_decode(joined, 1, 100 + step), expected)
    for one in (batch, joined):
        assert all(torch.equal(left, right) for left, right in zip(held(one), held(plain), strict=True))
    stored = [store for layer in plain.quantized_layers for store in layer.stores]
    alike = [store for layer in joined.quantized_layers for store in layer.stores]
    for left, right in zip(stored, alike, strict=True):
        for part, same in zip(left.coded_pages, right.coded_pages, strict=True):
            assert torch.equal(part.raw(), same.raw())


@pytest.mark.parametrize("text", TEXTS)
def test_b50_a_row_is_stored_alike_in_every_batch(text) -> None:
    rows = sample(3, 90, 5), sample(3, 90, 6)
    batch = new_cache(text)
    alone = [new_cache(text) for _ in range(3)]
    for begin, end in ((0, 60), (60, 61), (61, 90)):
        for layer in range(2):
            batch.update(rows[0][:, :, begin:end], rows[1][:, :, begin:end], layer)
            for row, cache in enumerate(alone):
                one = slice(row, row + 1)
                cache.update(rows[0][one, :, begin:end], rows[1][one, :, begin:end], layer)
    for row, cache in enumerate(alone):
        for one, other in zip(held(cache), held(batch), strict=True):
            assert one.shape[1:] == (HEADS, one.shape[2], DIM)
            assert torch.equal(one[0], other[row])


def test_b46_a_committed_page_never_changes() -> None:
    """Bytes of every full page, from the step in which it filled up to the last."""
    for text in TEXTS:
        cache = new_cache(text)
        seen: dict[tuple[int, int], torch.Tensor] = {}
        append(cache, 50, 1, rows=2)
        for step in range(120):
            append(cache, 1, 10 + step)
            full_layer = list(cache.quantized_layers[0].stores)
            for number, store in enumerate(full_layer):
                for run in store.coded_pages:
                    raw = run.raw()
                    for column in range(run.tokens // store.coded_layout.tokens):
                        page = raw[:, column]
                        assert torch.equal(seen.setdefault((number, column), page), page), (text, step)
        assert len(seen) >= 2
