"""Values, scales and bytes that reached an answer though they should not have, or did not though they should."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.core import tiles
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.errors import NonFiniteError
from kvassay.measures.cache_fill import synthetic_config
from tests.cache.cache_states import FORMATS, STATES, append, held, new_cache
from tests.cache.test_attention_paths import causal, defined, draw


def one_layer(kv_heads: int, text: str, **options) -> QuantizedCache:
    layer = LayerGeometry(kv_heads=kv_heads, head_dim=64, value_dim=64)
    config = synthetic_config(CacheGeometry(model_type="one", query_heads=kv_heads, layers=(layer,)))
    config._attn_implementation = "kvassay"
    return QuantizedCache(config, text, **options)


def attend(cache: QuantizedCache, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask=None):
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 1
    seen = cache.update(keys, values, 0)
    return packed_attention(module, query, *seen, mask, scaling=0.125)[0]


@pytest.mark.parametrize("text", ["int8-token-head", "kv=int4:group32/asym", "q4_0", "fp8-e4m3-token-head"])
def test_b10_every_path_reads_the_scales(text, monkeypatch) -> None:
    """All scales doubled where pages are read: whatever hands out a stored token must hand out another one."""
    read = PagedRows.read

    def doubled(rows, begin, end):
        found = read(rows, begin, end)
        for region in rows.pool.layout.regions:
            if region.stream.owner is Owner.SCALES:
                found[region.stream.name] = found[region.stream.name] * 2
        return found

    def answers() -> dict[str, torch.Tensor]:
        found = {}
        for path in ("tiled", "decoded"):
            cache = one_layer(2, text, attention=path)
            attend(cache, draw(1, 1, 2, 50, 64), draw(2, 1, 2, 50, 64), draw(3, 1, 2, 50, 64))
            found[f"{path} step"] = attend(cache, draw(4, 1, 2, 1, 64), draw(5, 1, 2, 1, 64), draw(6, 1, 2, 1, 64))
            found[f"{path} chunk"] = attend(cache, draw(4, 1, 2, 7, 64), draw(5, 1, 2, 7, 64), draw(6, 1, 2, 7, 64))
            found[f"{path} keys"], found[f"{path} values"] = cache.layers[0].keys, cache.layers[0].values
            fork = cache.fork()
            fork.crop(-3)
            found[f"{path} fork, cropped"] = fork.layers[0].keys
        return found

    before = answers()
    monkeypatch.setattr(PagedRows, "read", doubled)
    after = answers()
    for name, one in before.items():
        assert not torch.equal(one, after[name]), f"{name} does not read its scales"


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("text", ["f16", "bf16", "int8-token-head,recent=4,exact=f16", "int8-token-head,exact=bf16"])
def test_b17_another_dtype_is_converted_and_never_reinterpreted(text, given) -> None:
    cache = one_layer(1, text)
    x = torch.full((1, 1, 9, 64), 188.0, dtype=given)
    append_only = cache.update(x, x, 0)[0]
    assert append_only.dtype == given
    torch.testing.assert_close(cache.layers[0].keys.float(), torch.full((1, 1, 9, 64), 188.0), rtol=2**-8, atol=0)


def _length_error(tokens: int) -> tuple[float, float]:
    """Largest error of tiled attention (against decoded tokens in float64; against exact tokens in float64)."""
    cache = one_layer(1, "int8-token-head", attention="tiled")
    keys, values, query = draw(1, 1, 1, tokens, 64), draw(2, 1, 1, tokens, 64), draw(3, 1, 1, 1, 64)
    cache.update(keys[:, :, :-1], values[:, :, :-1], 0)
    found = attend(cache, query, keys[:, :, -1:], values[:, :, -1:]).double()
    mask = causal(1, 1, tokens, (0,))
    decoded = defined(query, cache.layers[0].keys, cache.layers[0].values, mask, 0.125)
    return float((found - decoded).abs().max()), float((found - defined(query, keys, values, mask, 0.125)).abs().max())


@pytest.mark.parametrize("tile", [64 * 64, tiles.TILE_ELEMENTS])
def test_b19_error_does_not_grow_with_the_length(tile, monkeypatch) -> None:
    """Also in 512 tiles: sums that were kept in 16 bits would show in the first bound."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", tile)
    short, long = _length_error(1024), _length_error(32768)
    assert max(short[0], long[0]) < 1e-6
    assert long[0] <= 2 * short[0] + 1e-8
    assert long[1] <= 2 * short[1]
    assert short[1] > 1e-5, "int8 errs; else this compares nothing"


@pytest.mark.parametrize("ways", [2, 4])
def test_b19_heads_split_over_caches_give_the_same_bits(ways, monkeypatch) -> None:
    """Equal codes always; equal answers bit for bit where the tiles are equal, to rounding where they are not."""
    keys, values, query = draw(1, 1, 4, 3000, 64), draw(2, 1, 4, 3000, 64), draw(3, 1, 4, 1, 64)

    def answer(heads: slice, tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        monkeypatch.setattr(tiles, "TILE_ELEMENTS", tile)
        own = keys[:, heads], values[:, heads]
        cache = one_layer(own[0].shape[1], "int4-g32", attention="tiled")
        cache.update(own[0][:, :, :-1], own[1][:, :, :-1], 0)
        out = attend(cache, query[:, heads], own[0][:, :, -1:], own[1][:, :, -1:])
        return out, cache.layers[0].keys

    per_head = 512 * 64
    parts = [slice(begin, begin + 4 // ways) for begin in range(0, 4, 4 // ways)]
    whole = answer(slice(None), 4 * per_head)
    split = [answer(part, 4 // ways * per_head) for part in parts]
    assert torch.equal(whole[0], torch.cat([out for out, _ in split], dim=2))
    assert torch.equal(whole[1], torch.cat([stored for _, stored in split], dim=1))
    uneven = torch.cat([answer(part, 4 * per_head)[0] for part in parts], dim=2)
    torch.testing.assert_close(uneven, whole[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("garbage", [0xFF, 0xAB], ids=["NaN", "0xAB"])
@pytest.mark.parametrize("state", [name for name in STATES if name not in ("emptied", "new_cache")])
@pytest.mark.parametrize("text", ["kivi-4,recent=20,sinks=3", "kv=nvfp4", "k=int4:channel8,v=int2:group16", "f16"])
def test_b27_b29_what_nobody_owns_is_never_read(text, state, garbage, monkeypatch) -> None:
    """Fresh pages full of 0xFF (NaN in every float) or 0xAB, free pages overwritten: nothing that is read moves."""
    expected = held(STATES[state](text))
    allocate, add = PagePool.allocate, PagePool._add_slab

    def dirty(pool, count):
        pages = allocate(pool, count)
        pool.put_raw(pages, torch.full((len(pages), pool.layout.nbytes), garbage, dtype=torch.uint8))
        return pages

    def dirty_slab(pool, count):
        add(pool, count)
        pool.slabs[-1].fill_(garbage)

    monkeypatch.setattr(PagePool, "allocate", dirty)
    monkeypatch.setattr(PagePool, "_add_slab", dirty_slab)
    cache = STATES[state](text)
    for layer in cache.quantized_layers:
        for store in layer.stores:
            for pool in store.pools:
                free = pool._free_ids()
                pool.put_raw(free, torch.full((len(free), pool.layout.nbytes), garbage, dtype=torch.uint8))
    found = held(cache)
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("path", ["tiled", "decoded"])
def test_b29_nan_in_padding_does_not_reach_a_valid_row(path) -> None:
    """What a model computes in columns that are padding may be NaN; rows that are not padded there must not see it."""
    answers = []
    for fill in (0.0, torch.nan):
        cache = one_layer(2, "int4-g32,recent=4", attention=path, left_padding=[0, 6])
        length, outs = 0, []
        for tokens in (4, 9, 1):  # padding ends inside the second chunk
            keys, values, query = (draw(10 * tokens + which, 2, 2, tokens, 64) for which in range(3))
            padding = max(0, 6 - length)
            keys[1, :, :padding] = values[1, :, :padding] = fill
            length += tokens
            out = attend(cache, query, keys, values, causal(2, tokens, length, (0, 6)))
            outs += [out[0], out[1, padding:]]
        answers.append(torch.cat(outs))
    assert torch.isfinite(answers[1]).all()
    assert torch.equal(*answers)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("text", FORMATS)
def test_b30_one_bad_value_is_refused_by_every_format_and_moves_nothing(text, bad) -> None:
    cache = new_cache(text)
    append(cache, 40, 1, rows=1)
    before = [side.clone() for side in held(cache)]
    keys = draw(1, 1, 2, 3, 64)
    keys[0, 1, 1, 5] = bad
    with pytest.raises(NonFiniteError, match="keys of layer 0"):
        cache.update(keys, draw(2, 1, 2, 3, 64), 0)
    assert all(torch.equal(one, other) for one, other in zip(before, held(cache), strict=True))


@pytest.mark.parametrize("text", ["int4-g32,recent=5", "kivi-2", "q8_0,sinks=2", "f16", "kvarn", "nvfp4"])
def test_b53_slices_of_bigger_buffers_are_stored_like_copies(text) -> None:
    """Storage offset, every second row, transposed heads, channels that are not neighbours, an expanded row."""
    big = draw(1, 4, 90, 5, 200)
    views = [
        big[1:3, 7:87, 1:3, 9:73].transpose(1, 2),
        big[::2, :80, 3:5, 1:129:2].transpose(1, 2),
        big[:2, 3:83, 0, None, 64:128].transpose(1, 2).expand(-1, 2, -1, -1),
        big[:2].flip(0)[:, ::1][:, 5:85, ::3][:, :, :, 100:164].transpose(1, 2),
    ]
    for view in views:
        assert view.shape == (2, 2, 80, 64)
        assert not view.is_contiguous()
        one, other = new_cache(text), new_cache(text)
        for begin, end in ((0, 70), (70, 71), (71, 80)):
            for layer in range(2):
                part = view[:, :, begin:end]
                copied = part.contiguous().clone()
                one.update(part, part, layer)
                other.update(copied, copied, layer)
        assert all(torch.equal(left, right) for left, right in zip(held(one), held(other), strict=True))
