"""Attention over packed pages, tile by tile, against the definition on decoded keys and values in float64."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.packed_view import PackedView
from kvassay.core import tiles
from kvassay.errors import CacheStateError
from tests import tiny_models
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_operations import small_config

KV_HEADS, RATIO, DIM = 2, 3, 64


def config() -> LlamaConfig:
    return one_layer_config(KV_HEADS, RATIO, DIM)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def defined(query, keys, values, mask, scaling, softcap=None, sinks=None) -> torch.Tensor:
    """The definition, at once and in float64."""
    query, keys, values = query.double(), keys.double(), values.double()
    keys, values = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (keys, values))
    scores = query @ keys.transpose(-1, -2) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), dim=-1)
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))[..., : keys.shape[2]]
    return (weights @ values).transpose(1, 2)


def causal(batch: int, queries: int, length: int, paddings) -> torch.Tensor:
    """[batch, 1, queries, length], query i in column length − queries + i."""
    open_ = torch.ones(queries, length, dtype=torch.bool).tril(length - queries).expand(batch, 1, -1, -1).clone()
    for row, padding in enumerate(paddings):
        open_[row, :, :, :padding] = False
    return open_


@pytest.mark.parametrize("tile", [1, 1 << 13, 1 << 30])
@pytest.mark.parametrize("name", ["f32", "int8-token-head", "kivi-4,recent=20,sinks=3", "q4_0/had,recent=7", "nvfp4"])
@pytest.mark.parametrize(
    ("softcap", "with_sinks", "paddings"),
    [(None, False, [0, 0]), (3.0, False, [0, 0]), (None, True, [0, 9]), (2.0, True, [30, 9])],
)
def test_b09_b11_tiles_give_the_attention_of_decoded_tokens(
    tile, name, softcap, with_sinks, paddings, monkeypatch
) -> None:
    """Prefill, chunk, single token: each equals the definition; an attention scale of 0.37 is not lost."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", tile)
    name = f"kv={name}" if "/" in name else name
    padding = paddings if any(paddings) else None
    one, other = (
        QuantizedCache(config(), name, attention=path, left_padding=padding, on_clip="count")
        for path in ("tiled", "decoded")
    )
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, RATIO
    sinks = draw(9, KV_HEADS * RATIO) if with_sinks else None
    length = 0
    for call, tokens in enumerate((40, 1, 17, 130, 1, 1, 5)):
        query = draw(call, 2, KV_HEADS * RATIO, tokens, DIM)
        keys, values = draw(100 + call, 2, KV_HEADS, tokens, DIM), draw(200 + call, 2, KV_HEADS, tokens, DIM)
        length += tokens
        mask = causal(2, tokens, length, paddings)
        packed = one.update(keys, values, 0)
        plain = other.update(keys, values, 0)
        options = {"scaling": 0.37, "softcap": softcap, "s_aux": sinks}
        assert isinstance(packed[0], PackedView) or call == 0
        found, _ = packed_attention(module, query, *packed, mask, **options)
        expected = defined(query, *plain, mask, 0.37, softcap, sinks)
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
        if call and not any(paddings):
            unmasked, _ = packed_attention(module, query, *packed, None, **options)
            torch.testing.assert_close(unmasked.double(), expected, atol=1e-5, rtol=1e-5)
    assert one.explain()[0].last is AttentionPath.TILED
    assert other.explain()[0].last is AttentionPath.DECODED


def test_b12_a_large_query_scale_and_a_small_key_scale_cancel() -> None:
    module = torch.nn.Module()
    outs = []
    for factor in (1.0, 64.0):
        cache = QuantizedCache(config(), "int8-token-head", attention="tiled")
        cache.update(draw(1, 1, KV_HEADS, 90, DIM) / factor, draw(2, 1, KV_HEADS, 90, DIM), 0)
        packed = cache.update(draw(3, 1, KV_HEADS, 1, DIM) / factor, draw(4, 1, KV_HEADS, 1, DIM), 0)
        outs.append(packed_attention(module, draw(5, 1, 6, 1, DIM) * factor, *packed, None, scaling=DIM**-0.5)[0])
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", tiny_models.NAMES)
@pytest.mark.parametrize("kv_format", ["f32", "kivi-4,recent=8,sinks=2", "k=int8:token-head,v=int4:group32,@1h1=q8_0"])
def test_models_give_the_same_logits_on_both_paths(name, kv_format) -> None:
    """B09, B33, B34, B37: sliding layers, soft cap, learned sinks, left padding, heads of other formats."""
    model = tiny_models.tiny_model(name)
    ids = torch.randint(3, 90, (3, 60), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((0, 7, 21)):
        mask[row, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    logits = {}
    model.set_attn_implementation("kvassay")
    for attention in ("decoded", "tiled"):
        cache = QuantizedCache(
            model.config, kv_format, attention=attention, left_padding=(mask == 0).sum(1), on_clip="count"
        )
        parts, past = [], 0
        for tokens in (25, 1, 1, 15, 1, 17):
            end = past + tokens
            with torch.no_grad():
                out = model(
                    ids[:, past:end], attention_mask=mask[:, :end], position_ids=positions[:, past:end], cache=cache
                )
            parts.append(out.logits)
            past = end
        logits[attention] = torch.cat(parts, dim=1)[mask.bool()]
    torch.testing.assert_close(logits["tiled"], logits["decoded"], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_b11_the_models_own_attention_gives_the_same_on_plain_floats(name) -> None:
    """Soft cap, learned sinks, scale and masks are read as the model's code reads them (its softmax is float32)."""
    model = tiny_models.tiny_model(name)
    ids = torch.randint(3, 90, (2, 60), generator=torch.Generator().manual_seed(1))
    logits = {}
    for implementation in ("eager", "kvassay"):
        model.set_attn_implementation(implementation)
        cache = QuantizedCache(model.config, "f32", attention="decoded" if implementation == "eager" else "tiled")
        with torch.no_grad():
            logits[implementation] = torch.cat([model(part, cache=cache).logits for part in ids.split(17, dim=1)], 1)
    torch.testing.assert_close(logits["kvassay"], logits["eager"], atol=2e-6, rtol=1e-5)


def test_b34_a_padded_row_is_stored_and_answers_as_if_it_ran_alone() -> None:
    model = tiny_models.tiny_model("llama")
    model.set_attn_implementation("kvassay")
    text = torch.randint(3, 90, (1, 50), generator=torch.Generator().manual_seed(2))
    paddings = [0, 7, 30]
    ids = torch.cat([torch.cat((torch.zeros(1, p, dtype=torch.long), text[:, : 50 - p]), dim=1) for p in paddings])
    mask = torch.ones_like(ids)
    for row, padding in enumerate(paddings):
        mask[row, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    cache = QuantizedCache(model.config, "kivi-4,recent=4,sinks=2", left_padding=paddings)
    with torch.no_grad():
        model(ids[:, :49], attention_mask=mask[:, :49], position_ids=positions[:, :49], cache=cache)
        last = model(ids[:, 49:], attention_mask=mask, position_ids=positions[:, 49:], cache=cache).logits
        for row, padding in enumerate(paddings):
            alone = QuantizedCache(model.config, "kivi-4,recent=4,sinks=2")
            model(text[:, : 49 - padding], cache=alone)
            expected = model(text[:, 49 - padding : 50 - padding], cache=alone).logits
            torch.testing.assert_close(last[row], expected[0], atol=1e-6, rtol=1e-6)


def test_a_view_is_a_tensor_to_whoever_does_not_know_it() -> None:
    """B35: shape, dtype, arithmetic, indexing, comparison."""
    cache = QuantizedCache(config(), "int4-g32")
    cache.update(draw(1, 1, KV_HEADS, 9, DIM), draw(2, 1, KV_HEADS, 9, DIM), 0)
    keys, values = cache.update(draw(3, 1, KV_HEADS, 1, DIM), draw(4, 1, KV_HEADS, 1, DIM), 0)
    assert isinstance(keys, PackedView)
    assert (keys.shape, keys.dtype, keys.device.type) == ((1, KV_HEADS, 10, DIM), torch.float32, "cpu")
    assert torch.equal(keys, cache.layers[0].keys)
    assert torch.equal(keys.transpose(-1, -2)[..., :3], cache.layers[0].keys.transpose(-1, -2)[..., :3])
    assert torch.equal(values + 1, cache.layers[0].values + 1)
    assert float((keys @ values.transpose(-1, -2)).sum()) == float(
        (cache.layers[0].keys @ cache.layers[0].values.transpose(-1, -2)).sum()
    )
    assert "PackedView(keys" in repr(cache.update(draw(3, 1, KV_HEADS, 1, DIM), draw(4, 1, KV_HEADS, 1, DIM), 0)[0])


def test_b65_a_path_that_is_not_there_is_refused_and_the_one_taken_is_named() -> None:
    eager = small_config()
    eager._attn_implementation = "eager"
    cache = QuantizedCache(eager, "int8-token-head", attention="tiled")
    with pytest.raises(CacheStateError, match=r"attention is 'eager'; model.set_attn_implementation\('kvassay'\)"):
        cache.update(draw(1, 1, 2, 3, 64), draw(2, 1, 2, 3, 64), 0)
    named = QuantizedCache(eager, "int8-token-head").explain()
    assert [row.next for row in named] == [AttentionPath.DECODED] * 2
    assert "set_attn_implementation" in named[0].reason
