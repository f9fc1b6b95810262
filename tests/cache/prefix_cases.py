"""Caches and texts that the tests of shared prefixes have in common."""

from __future__ import annotations

import torch

from kvassay.cache import PrefixIdentity, QuantizedCache
from tests import tiny_models

HEADS, DIM, LAYERS = 2, 64, 3
LLAMA = tiny_models.tiny_config("llama")
HYBRID = tiny_models.tiny_config("gemma3")
HYBRID.sliding_window = 200
BLOCK = 64
TOKENS = 3 * BLOCK + 8
"""Three blocks and a rest."""

States = list[tuple[torch.Tensor, ...]]


def empty_cache(name: str = "int8-token-head", config=LLAMA, **options) -> QuantizedCache:
    return QuantizedCache(config, name, **options)


def identity_of(cache: QuantizedCache, **changes) -> PrefixIdentity:
    fields = {
        "model": "tiny",
        "revision": "r1",
        "tokenizer": "t1",
        "rope": "default",
        "compute_dtype": "float32",
        **changes,
    }
    return PrefixIdentity.of(cache, **fields)


def states(tokens: int, layers: int = LAYERS, seed: int = 0, batch: int = 1) -> States:
    """Keys and values of each layer, `[batch, HEADS, tokens, DIM]`."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(batch, HEADS, tokens, DIM, generator=generator) for _ in range(2)) for _ in range(layers)]


def append(cache: QuantizedCache, given: States, begin: int, end: int) -> None:
    if end > begin:
        for layer, (keys, values) in enumerate(given):
            cache.update(keys[:, :, begin:end], values[:, :, begin:end], layer)


def filled_cache(name: str = "int8-token-head", tokens: int = TOKENS, seed: int = 0, **options) -> QuantizedCache:
    cache = empty_cache(name, **options)
    append(cache, states(tokens, len(cache.layers), seed), 0, tokens)
    return cache


def assert_same_state(one: QuantizedCache, other: QuantizedCache) -> None:
    """Coded tokens, tail, sinks and what is dropped: the same tokens in the same pages with the same codes."""
    assert one.get_seq_length() == other.get_seq_length()
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)
        for a, b in zip(mine.stores, theirs.stores, strict=True):
            assert (a.tokens, a.coded, a.dropped) == (b.tokens, b.coded, b.dropped)
            pairs = [*zip(a.coded_pages, b.coded_pages, strict=True), (a.parts.tail, b.parts.tail)]
            for run, expected in [*pairs, (a.parts.sinks, b.parts.sinks)]:
                assert (run.first, run.end) == (expected.first, expected.end)
                if run.tokens:
                    assert run.start == expected.start
                    assert run.table.shape == expected.table.shape
                    found, wanted = run.read(run.first, run.end), expected.read(run.first, run.end)
                    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def assert_prefix_of(found: QuantizedCache, whole: QuantizedCache) -> None:
    """A cache of coded tokens alone reads as the begin of one that holds more."""
    count = found.get_seq_length()
    for mine, theirs in zip(found.layers, whole.layers, strict=True):
        for a, b in zip(mine.stores, theirs.stores, strict=True):
            assert torch.equal(a.read(end=count), b.read(begin=a.first_token, end=count))
