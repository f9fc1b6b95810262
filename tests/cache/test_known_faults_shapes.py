"""Shapes that were met with a crash or a wrong answer: latent layers, head sizes by layer, windows, grouped heads."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import predict_ledger
from kvassay.errors import GeometryError
from kvassay.formats import quantizer
from kvassay.measures.cache_fill import synthetic_config
from tests.cache.test_attention_paths import causal, defined, draw
from tests.cache.test_operations import DIM, HEADS, WINDOW, small_config

LATENT = LayerGeometry(kv_heads=1, head_dim=576, value_dim=512)
QUERY_HEADS = 16


def module(ratio: int) -> torch.nn.Module:
    found = torch.nn.Module()
    found.is_causal, found.num_key_value_groups = True, ratio
    return found


def latent_layer(text: str) -> QuantizedLayer:
    return QuantizedLayer(parse_format(text), 0, LATENT, ((None, None),), "raise")


def layered(layers: list[LayerGeometry], query_heads: int) -> CacheGeometry:
    return CacheGeometry(model_type="layered", query_heads=query_heads, layers=tuple(layers))


@pytest.mark.parametrize("text", ["f32", "int8-token-head", "kv=int4:group64", "q8_0,recent=9,sinks=2"])
@pytest.mark.parametrize("views", [True, False])
def test_b18_b35_keys_of_576_and_values_of_512_in_one_head(text, views) -> None:
    """Bytes, reading and both attention paths of a latent layer with its rotary part."""
    layer, kv_format = latent_layer(text), parse_format(text)
    layer.hands_out_views = views
    length = 0
    for call, tokens in enumerate((70, 1, 9, 1)):
        query = draw(call, 2, QUERY_HEADS, tokens, LATENT.head_dim)
        keys = draw(10 + call, 2, 1, tokens, LATENT.head_dim)
        values = draw(20 + call, 2, 1, tokens, LATENT.value_dim)
        length += tokens
        seen = layer.update(keys, values)
        assert [each.shape[-1] for each in seen] == [576, 512]
        mask = causal(2, tokens, length, (0, 0))
        found, _ = packed_attention(module(QUERY_HEADS), query, *seen, mask, scaling=0.05)
        assert found.shape == (2, tokens, QUERY_HEADS, 512)
        # Kernels round queries and weights to 16 bits where codes are integers.
        tolerance = 4e-4 if layer.path is AttentionPath.FUSED else 1e-5
        plain = [each + 0 for each in seen]
        expected = defined(query, *plain, mask, 0.05)
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
        del seen
    predicted = predict_ledger(layered([LATENT], QUERY_HEADS), kv_format, length, 2)
    stored = [store.owner_nbytes(skipped_layer=False) for store in layer.stores]
    assert stored == [predicted.keys_nbytes, predicted.values_nbytes]
    assert type(layer.keys) is type(layer.values) is torch.Tensor


def test_b18_a_loud_rotary_part_does_not_cost_the_latent_its_precision() -> None:
    """Groups of 64 give the 64 rotary channels a scale of their own; one scale for all 576 would not."""
    keys = draw(1, 1, 1, 80, 576)
    keys[..., 512:] *= 100
    errors = {}
    for text in ("kv=int4:group64", "kv=int4:token-head"):
        layer = latent_layer(text)
        layer.update(keys, draw(2, 1, 1, 80, 512))
        assert layer.keys is not None
        errors[text] = float((layer.keys - keys)[..., :512].square().mean())
    assert errors["kv=int4:group64"] < 0.02
    assert errors["kv=int4:token-head"] > 10 * errors["kv=int4:group64"]


def test_b18_b38_a_whole_latent_model_is_refused_when_the_cache_is_made() -> None:
    with pytest.raises(GeometryError, match="kv_lora_rank"):
        QuantizedCache(DeepseekV3Config(), "int8-token-head")


@pytest.mark.parametrize("text", ["f16", "int4-g32", "kivi-2,recent=16", "q4_0,sinks=3"])
def test_b41_layers_of_256_512_and_64_are_counted_layer_by_layer(text) -> None:
    layers = [
        LayerGeometry(kv_heads=heads, head_dim=dim, value_dim=dim) for heads, dim in ((2, 256), (1, 512), (2, 64))
    ]
    cache = QuantizedCache(synthetic_config(layered(layers, 2)), text)
    for index, layer in enumerate(cache.geometry.layers):
        assert layer == layers[index]
        new = draw(index, 2, 2, layer.kv_heads, 100, layer.head_dim)
        cache.update(new[0], new[1], index)
    apart = [predict_ledger(layered([layer], 2), cache.kv_format, 100, 2).persistent_nbytes for layer in layers]
    ledger = cache.ledger()
    assert ledger.persistent_nbytes == sum(apart)
    slabs = sum(slab.untyped_storage().nbytes() for slab in cache.storages())
    assert ledger.persistent_nbytes - ledger.owner_nbytes("block_table") == slabs


@pytest.mark.parametrize("text", ["f32", "int8-token-head", "kivi-4"])
def test_b37_a_sliding_layer_between_full_ones_is_bounded_and_counted(text) -> None:
    """Layers [full, sliding(64), full], 500 tokens: what is read, how much is held, and where it is counted."""
    layers = [
        LayerGeometry(kv_heads=2, head_dim=64, value_dim=64, sliding_window=window) for window in (None, 64, None)
    ]
    cache = QuantizedCache(synthetic_config(layered(layers, 2)), text)
    whole = QuantizedCache(synthetic_config(layered([layers[0]] * 3, 2)), text)
    for tokens in (430, 69, 1):
        new = draw(tokens, 2, 1, 2, tokens, 64)
        seen = [cache.update(new[0], new[1], index) for index in range(3)]
        full = [whole.update(new[0], new[1], index) for index in range(3)]
    assert [each[0].shape[2] for each in seen] == [500, 64, 500]
    for one, other in zip(seen, full, strict=True):
        for side, complete in zip(one, other, strict=True):
            assert torch.equal(side + 0, (complete + 0)[:, :, 500 - side.shape[2] :])
    held = [next(layer.stores) for layer in cache.quantized_layers]
    assert held[1].tokens - held[1].first_token < 64 + 2 * 64
    assert sum(slab.numel() for pool in held[1].pools for slab in pool.slabs) < 0.7 * sum(
        slab.numel() for pool in held[0].pools for slab in pool.slabs
    )
    assert cache.ledger().persistent_nbytes == predict_ledger(cache.geometry, cache.kv_format, 500).persistent_nbytes


@pytest.mark.parametrize("chunk", [1, 7, 64, 100])
@pytest.mark.parametrize("text", ["f32", "int8-token-head", "kivi-4,recent=8"])
def test_b39_b43_a_window_holds_the_last_tokens_in_their_order(text, chunk) -> None:
    """Window 64, 500 tokens: a step after each chunk reads the last 64, rising by one token to the next."""
    layer = LayerGeometry(kv_heads=1, head_dim=32, value_dim=32, sliding_window=64)
    cache = QuantizedCache(synthetic_config(layered([layer], 1)), f"kv={text}" if "/" in text else text)
    whole = QuantizedCache(synthetic_config(layered([layer.model_copy(update={"sliding_window": None})], 1)), text)
    positions = torch.arange(1.0, 2001.0)[None, None, :, None].expand(1, 1, -1, 32)
    end = 0
    while end < 500:
        for tokens in (chunk, 1):
            new = positions[:, :, end : end + tokens]
            seen = cache.update(new, new, 0)[0] + 0
            complete = whole.update(new, new, 0)[0] + 0
            end += tokens
        assert seen.shape[2] == min(64, end)
        assert torch.equal(seen, complete[:, :, -64:])
        if text != "kivi-4,recent=8":  # two bits less of a channel's range may merge neighbours
            assert bool((seen[0, 0, :, 0].diff() > 0).all())


@pytest.mark.parametrize("batch", [2, 3, 8])
@pytest.mark.parametrize("path", ["tiled", "decoded"])
def test_b33_grouped_heads_with_left_padding_equal_the_definition(batch, path) -> None:
    """Eight query heads on two KV heads; also as many rows as KV or query heads, where a wrong broadcast runs."""
    geometry = layered([LayerGeometry(kv_heads=2, head_dim=64, value_dim=64)], 8)
    settings = synthetic_config(geometry)
    settings._attn_implementation = "kvassay"
    paddings = [5 * (row % 2) for row in range(batch)]
    cache = QuantizedCache(settings, "int8-token-head", attention=path, left_padding=paddings)
    length = 0
    for tokens in (30, 1, 4):
        new = draw(tokens, 2, batch, 2, tokens, 64)
        query = draw(50 + tokens, batch, 8, tokens, 64)
        length += tokens
        seen = cache.update(new[0], new[1], 0)
        mask = causal(batch, tokens, length, paddings)
        found, _ = packed_attention(module(4), query, *seen, mask, scaling=0.125)
        expected = defined(query, seen[0] + 0, seen[1] + 0, mask, 0.125)
        for row, padding in enumerate(paddings):
            first = max(0, padding - (length - tokens))
            torch.testing.assert_close(found[row, first:].double(), expected[row, first:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("path", ["tiled", "decoded"])
@pytest.mark.parametrize("forgets", [False, True])
def test_b42_a_rotation_is_undone_on_every_path(path, forgets) -> None:
    """8-bit groups of 16 with and without a rotation of keys and values give nearly the same attention.

    A path that forgets to rotate back (put in by hand) is far off, so the tolerance can tell.
    """
    geometry = layered([LayerGeometry(kv_heads=2, head_dim=64, value_dim=64)], 2)
    settings = synthetic_config(geometry)
    settings._attn_implementation = "kvassay"
    outs = []
    for text in ("kv=int8:group16", "kv=int8:group16/had"):
        cache = QuantizedCache(settings, text, attention=path)
        new = draw(1, 2, 1, 2, 200, 64)
        cache.update(new[0], new[1], 0)
        if forgets and "had" in text:
            for store in cache.quantized_layers[0].stores:
                store._codec._quantizer = quantizer(parse_format("kv=int8:group16").keys)
        seen = cache.update(new[0][:, :, :1], new[1][:, :, :1], 0)
        outs.append(packed_attention(module(1), draw(3, 1, 2, 1, 64), *seen, None, scaling=0.125)[0])
        held = cache.layers[0].keys
        assert (float((held[:, :, :200] - new[0]).abs().max()) < 0.05) != (forgets and "had" in text)
    assert (float((outs[0] - outs[1]).abs().max()) < 5e-3) != forgets


@pytest.mark.parametrize("text", ["f32", "int8-token-head", "k=int4:channel4,v=int4:group16,recent=4,sinks=1"])
def test_a_sliding_layer_shows_what_it_recorded_and_crops_to_it(text) -> None:
    cache = QuantizedCache(small_config(), text)
    cache.activate_past_recording()
    states = torch.randn(2, HEADS, WINDOW + 20, DIM)
    sliding = cache.layers[1]
    sliding.update(states, states)
    assert sliding.keys.shape[2] == sliding.values.shape[2] == WINDOW + 20
    assert torch.allclose(sliding.keys, states, atol=0.5)
    sliding.crop(-30)
    assert sliding.keys.shape[2] == WINDOW - 10
    sliding.crop(-WINDOW)
    assert sliding.keys.numel() == 0
