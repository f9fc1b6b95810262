"""One new token over a whole layer: the short way gives the bits of the general one, and is taken where it can be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kvassay.cache import QuantizedCache, attention
from kvassay.cache.attention import packed_attention
from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.fused_attention import fused_attention, serves_step, step_attention
from kvassay.cache.packed_view import PackedView
from kvassay.cache.tiled_attention import Scoring
from kvassay.kernels import native_state
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_attention_paths import causal, defined, draw

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

FORMATS = ("int4-g64", "int8-token-head", "kivi-4,recent=32", "turboquant-mse-4,sinks=4", "nf4-g64", "bf16")


def grown(name: str, rows: int = 2, tokens: int = 90, **options) -> QuantizedCache:
    cache = QuantizedCache(one_layer_config(2, 3, 64), name, on_clip="count", **options)
    cache.update(draw(1, rows, 2, tokens, 64), draw(2, rows, 2, tokens, 64), 0)
    return cache


def appended(cache: QuantizedCache, seed: int, rows: int = 2, dtype: torch.dtype = torch.float32) -> PackedView:
    keys, _ = cache.update(draw(seed, rows, 2, 1, 64).to(dtype), draw(seed + 50, rows, 2, 1, 64).to(dtype), 0)
    assert isinstance(keys, PackedView)
    return keys


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMATS)
def test_the_short_way_has_the_same_bits(name, dtype) -> None:
    cache = grown(name)
    sinks = draw(9, 6)
    for scoring in (Scoring(0.2), Scoring(0.2, softcap=5.0), Scoring(0.2, sinks=sinks)):
        for seed in range(3):
            keys = appended(cache, 10 + seed, dtype=dtype)
            seen, query = keys.seen(), draw(20 + seed, 2, 6, 1, 64).to(dtype)
            assert serves_step(query, seen)
            expected = fused_attention(query, seen, None, scoring).transpose(1, 2)
            assert torch.equal(step_attention(query, seen, scoring), expected)


def test_a_models_single_tokens_go_that_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def counted(query, seen, scoring):
        taken.append(query.shape)
        return step_attention(query, seen, scoring)

    monkeypatch.setattr(attention, "step_attention", counted)
    module = nn.Module()
    for options, mask, served in (
        ({}, None, 1),
        ({"attention": "tiled"}, None, 0),
        ({}, torch.ones(2, 1, 1, 91, dtype=torch.bool), 0),
        ({"left_padding": [0, 7]}, None, 0),
    ):
        taken.clear()
        cache = grown("int4-g64", **options)
        new = [draw(3, 2, 2, 1, 64), draw(4, 2, 2, 1, 64)]
        packed_attention(module, draw(5, 2, 6, 1, 64), *cache.update(*new, 0), mask, scaling=0.2)
        assert len(taken) == served, options


def test_rows_that_were_reordered_or_cut_are_read_as_they_lie_now() -> None:
    cache = grown("kivi-4,recent=4")
    appended(cache, 11)
    cache.batch_select_indices(torch.tensor([1, 0, 1]))
    cache.crop(-20)
    module = nn.Module()
    for seed in range(40):
        query = draw(20 + seed, 3, 6, 1, 64)
        packed = cache.update(draw(seed, 3, 2, 1, 64), draw(seed + 50, 3, 2, 1, 64), 0)
        out, _ = packed_attention(module, query, *packed, None, scaling=0.2)
        length = cache.get_seq_length()
        plain = [each.decode() for each in packed]
        expected = defined(query, *plain, causal(3, 1, length, (0, 0, 0)), 0.2, None, None)
        assert (out.double() - expected).norm() < 4e-4 * expected.norm()


@pytest.mark.parametrize("name", ["int4-g64", "int8-token-head"])
def test_latent_attentions_shape_is_fused(name) -> None:
    """576 channels of keys, 512 of values, 16 query heads on one KV head, as with absorbed projections."""
    config = one_layer_config(1, 16, 576)
    config.v_head_dim = 512
    cache = QuantizedCache(config, name)
    assert (cache.geometry.layers[0].head_dim, cache.geometry.layers[0].value_dim) == (576, 512)
    cache.update(draw(1, 1, 1, 150, 576), draw(2, 1, 1, 150, 512), 0)
    for tokens in (1, 3):
        packed = cache.update(draw(3, 1, 1, tokens, 576), draw(4, 1, 1, tokens, 512), 0)
        query = draw(5, 1, 16, tokens, 576)
        module = nn.Module()
        module.is_causal, module.num_key_value_groups = True, 16
        out, _ = packed_attention(module, query, *packed, None, scaling=0.04)
        assert cache.explain()[0].last is AttentionPath.FUSED
        assert out.shape == (1, tokens, 16, 512)
        plain = [each.decode() for each in packed]
        expected = defined(query, *plain, causal(1, tokens, cache.get_seq_length(), (0,)), 0.04, None, None)
        assert (out.double() - expected).norm() < 4e-4 * expected.norm()
