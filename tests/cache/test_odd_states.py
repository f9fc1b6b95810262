"""What a cache is given that is no plain tensor of floats in memory: stored as what it stands for, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.errors import CacheStateError, GeometryError, KernelError
from tests.tiny_models import tiny_config, tiny_model

HEADS, DIM = 2, 64
FORMATS = ("int8-token-head", "kivi-4,recent=16", "kv=f32")


def config(**changes):
    found = tiny_config("llama", num_hidden_layers=1, **changes)
    found._attn_implementation = "sdpa"
    return found


def sample(seed: int, tokens: int = 1, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def primed(text: str) -> QuantizedCache:
    """A cache whose next single token goes the short way."""
    cache = QuantizedCache(config(), text)
    for seed, tokens in enumerate((10, 1)):
        cache.update(sample(seed, tokens), sample(seed, tokens), 0)
    return cache


def packed_view(states: torch.Tensor) -> torch.Tensor:
    """As attention is handed it, by another cache that stores it exactly."""
    return QuantizedCache(config(), "kv=f32").update(states, states, 0)[0]


ODD = {
    "a view that negates": (lambda x: torch._neg_view(x), lambda x: -x),
    "zeros without memory": (lambda x: torch._efficientzerotensor(x.shape), torch.zeros_like),
    "a parameter": (torch.nn.Parameter, lambda x: x),
    "a packed view of another cache": (packed_view, lambda x: x),
    "heads that are one in memory": (lambda x: x[:, :1].expand_as(x), lambda x: x[:, :1].repeat(1, HEADS, 1, 1)),
    "channels with gaps": (lambda x: torch.stack((x, x), dim=-1)[..., 0], lambda x: x),
}


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("tokens", [1, 3])
def test_odd_tensors_are_stored_as_the_numbers_that_they_stand_for(kind, text, tokens) -> None:
    """A pointer to their memory would store other numbers, or read where there is no memory at all."""
    make, means = ODD[kind]
    states = sample(5, tokens)
    if kind == "a packed view of another cache" and tokens > 1:
        expected = states
        states = packed_view(states)
    else:
        expected, states = means(states), make(states)
    odd, plain = primed(text), primed(text)
    odd.update(states, states, 0)
    plain.update(expected.contiguous(), expected.contiguous(), 0)
    for side in ("keys", "values"):
        assert torch.equal(getattr(odd.layers[0], side), getattr(plain.layers[0], side))
    # And it goes on by the short way.
    for cache in (odd, plain):
        cache.update(sample(6), sample(6), 0)
    assert torch.equal(odd.layers[0].keys, plain.layers[0].keys)


REFUSED = {
    "a text": "x",
    "a list": [[1.0]],
    "nothing": None,
    "an array": np.zeros((1, HEADS, 1, DIM), np.float32),
    "float8": sample(0).to(torch.float8_e4m3fn),
    "integers": torch.ones(1, HEADS, 1, DIM, dtype=torch.long),
    "no memory": torch.empty(1, HEADS, 1, DIM, device="meta"),
    "sparse": sample(0).to_sparse(),
    "nested": torch.nested.nested_tensor([sample(0)[0]]),
    "three axes": sample(0)[0],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_dense_tensor_of_floats_is_refused_and_changes_nothing(kind) -> None:
    for cache in (QuantizedCache(config(), "kivi-4,recent=16"), primed("kivi-4,recent=16")):
        before = cache.get_seq_length()
        for keys, values in ((REFUSED[kind], sample(1)), (sample(1), REFUSED[kind])):
            with pytest.raises(GeometryError, match=r"(keys|values) of layer 0"):
                cache.update(keys, values, 0)
        assert cache.get_seq_length() == before
        cache.update(sample(2), sample(2), 0)


def test_a_query_that_negates_is_read_as_what_it_stands_for() -> None:
    cache = primed("int8-token-head")
    query = torch.randn(1, 4, 1, DIM)
    module, answers = torch.nn.Module(), []
    for each in (torch._neg_view(query), -query):
        seen = cache.fork().update(sample(4), sample(4), 0)
        answers.append(packed_attention(module, each, *seen, None)[0])
    assert torch.equal(*answers)


@pytest.mark.parametrize("attention", ["auto", "fused"])
def test_b65_more_query_heads_than_kernels_take_are_read_in_torch_or_refused(attention) -> None:
    """80 query heads on one KV head, as in models of multi-query attention: a step once failed in the kernel."""
    wide = config(num_attention_heads=80, num_key_value_heads=1, hidden_size=1280, head_dim=16)
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(wide).eval()
    tokens = torch.randint(3, 90, (1, 12))
    cache = QuantizedCache(model.config, "kv=f32", attention=attention)
    if attention == "fused":
        with pytest.raises(KernelError, match="80 query heads share a KV head; kernels take 64"):
            model.generate(tokens, cache=cache, max_new_tokens=2, do_sample=False)
        return
    answer = model.generate(tokens, cache=cache, max_new_tokens=5, do_sample=False)
    assert torch.equal(answer, model.generate(tokens, max_new_tokens=5, do_sample=False))
    assert "80 query heads" in cache.explain()[0].reason


def test_left_padding_of_other_rows_than_arrive_says_what_beams_do() -> None:
    model = tiny_model("llama")
    tokens = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    padding = (mask == 0).sum(1)
    options = {"attention_mask": mask, "num_beams": 3, "max_new_tokens": 5, "do_sample": False}
    with pytest.raises(GeometryError, match=r"left_padding of 2; give one count for each row.*num_beams"):
        model.generate(tokens, cache=QuantizedCache(model.config, "kv=f32", left_padding=padding), **options)
    cache = QuantizedCache(model.config, "kv=f32", left_padding=padding.repeat_interleave(3))
    assert torch.equal(model.generate(tokens, cache=cache, **options), model.generate(tokens, **options))


def test_rows_that_are_no_numbers_and_batches_beyond_any_memory_are_refused() -> None:
    cache = primed("kivi-4,recent=16")
    for rows in (None, "0", [[0], [0, 1]]):
        with pytest.raises(CacheStateError, match="expected a sequence of whole numbers"):
            cache.batch_select_indices(rows)
    with pytest.raises(CacheStateError, match="at most 1,048,576"):
        cache.batch_repeat_interleave(10**9)
    with pytest.raises(CacheStateError, match=r"append them with cache.update"):
        cache.layers[0].keys = sample(0)
    assert cache.batch_size == 1
    assert cache.get_seq_length() == 11


AUTOCAST = ("kv=int4:group32/had=32", "q4_0", "kv=lloyd-qjl-4:token-head", "kivi-4,recent=16", "nvfp4")


@pytest.mark.parametrize("text", AUTOCAST)
@pytest.mark.parametrize("attention", ["auto", "tiled"])
def test_autocast_changes_neither_what_is_stored_nor_what_attention_gives(text, attention) -> None:
    """A product in 16 bits would give other codes, and kernels numbers of a type that they do not know."""
    query = torch.randn(1, 4, 1, DIM, generator=torch.Generator().manual_seed(9))
    found = []
    for enabled in (False, True):
        cache = QuantizedCache(config(), text, attention=attention)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for seed, tokens in enumerate((70, 1, 1, 5, 1)):
                seen = cache.update(sample(seed, tokens), sample(seed + 50, tokens), 0)
            answer = packed_attention(torch.nn.Module(), query, *seen, None)[0]
            found.append((cache.layers[0].keys, cache.layers[0].values, answer))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)


def test_a_token_without_an_address_leaves_the_layer_as_it_was() -> None:
    cache = primed("int8-token-head")

    def append(states: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError, match="data pointer"):
            cache.update(states, states, 0)
        return states

    torch.func.vmap(append)(torch.stack((sample(7), sample(8))))
    cache.update(sample(9), sample(9), 0)
    assert cache.get_seq_length() == 12
