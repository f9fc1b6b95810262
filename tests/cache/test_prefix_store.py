"""Shared prefixes: what a lookup gives is what appending would have given, and nothing is given across an identity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cache import PrefixIdentity, PrefixStore, QuantizedCache
from kvassay.cache.prefix_results import PrefixBound, PrefixSource
from kvassay.core.format_names import parse_format
from kvassay.core.prefix_blocks import block_grid
from kvassay.errors import CacheStateError, ForeignFormatError
from tests import tiny_models
from tests.cache.test_operations import DIM, FORMATS, HEADS, small_config

LLAMA = tiny_models.tiny_config("llama")


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


def states(tokens: int, layers: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer, `[1, HEADS, tokens, DIM]`."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(1, HEADS, tokens, DIM, generator=generator) for _ in range(2)) for _ in range(layers)]


def append(cache: QuantizedCache, given: list[tuple[torch.Tensor, torch.Tensor]], begin: int, end: int) -> None:
    for layer, (keys, values) in enumerate(given):
        if end > begin:
            cache.update(keys[:, :, begin:end], values[:, :, begin:end], layer)


def assert_same_state(one: QuantizedCache, other: QuantizedCache) -> None:
    """Coded tokens, tail, sinks and what is dropped: the same tokens in the same pages with the same codes."""
    assert one.get_seq_length() == other.get_seq_length()
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)
        for a, b in zip(mine.stores, theirs.stores, strict=True):
            assert (a.tokens, a.coded, a.dropped) == (b.tokens, b.coded, b.dropped)
            pairs = [*zip(a.coded_pages, b.coded_pages, strict=True), (a.tail_pages, b.tail_pages)]
            for run, expected in [*pairs, (a.sink_pages, b.sink_pages)]:
                assert (run.first, run.end) == (expected.first, expected.end)
                if run.tokens:
                    assert run.start == expected.start
                    assert run.table.shape == expected.table.shape
                    found, wanted = run.read(run.first, run.end), expected.read(run.first, run.end)
                    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    sinks=st.sampled_from([0, 0, 4, 5, 70]),
    recent=st.sampled_from([0, 1, 32, 40]),
    skip=st.sampled_from(["none", "0"]),
    hybrid=st.booleans(),
    length=st.integers(1, 420),
    shared=st.integers(0, 420),
    chunk=st.sampled_from([7, 16, 1000]),
    folder=st.booleans(),
)
def test_b55_a_cache_that_began_with_shared_pages_is_the_one_that_appended_all(
    tmp_path_factory, name, sinks, recent, skip, hybrid, length, shared, chunk, folder
) -> None:
    """B55, R20: the longest usable prefix, never a mixed page, and the same state at every later token."""
    config = small_config() if hybrid else LLAMA
    kv_format = parse_format(f"{name},sinks={sinks},recent={recent},skip={skip}")
    path = tmp_path_factory.mktemp("prefixes") if folder else None

    def empty() -> QuantizedCache:
        return QuantizedCache(config, kv_format, on_clip="count")

    cache, store = empty(), PrefixStore(folder=path)
    identity = identity_of(cache)
    layers = len(cache.layers)
    given_states = states(470, layers)
    ids = torch.arange(470)
    for end in range(min(chunk, length), length + 1, chunk):
        append(cache, given_states, cache.get_seq_length(), end)
        store.put(cache, ids[:end], identity)
    if folder:
        store = PrefixStore(folder=path)

    shared = min(shared, length)
    prompt = torch.cat((ids[:shared], 1000 + ids[shared:450]))
    other_states = [
        tuple(torch.cat((a[:, :, :shared], -a[:, :, shared:]), dim=2) for a in sides) for sides in given_states
    ]
    found = store.lookup(prompt, identity, empty())
    assert found.tokens <= min(shared, len(prompt) - 1)
    assert found.cache.get_seq_length() == found.tokens
    assert not found.damaged
    grid = block_grid(kv_format, cache.geometry)
    put_tokens = cache.get_seq_length()
    full = grid.whole_blocks(min(shared, put_tokens)) if not grid.obstacle else 0
    if not hybrid:
        # Everything that is coded in the cache that was put, and will be in this one, is found.
        assert found.tokens == grid.end(min(full, grid.committed_blocks(put_tokens)))
    expected = empty()
    append(expected, other_states, 0, found.tokens)
    for step in (1, 30, 2):
        begin = found.cache.get_seq_length()
        end = 440 if begin == found.tokens else begin + step
        append(found.cache, other_states, begin, end)
        append(expected, other_states, begin, end)
        assert_same_state(found.cache, expected)
    if not found.cache.layers[0].batch_size > 1:
        again = store.lookup(prompt, identity, empty())
        assert again.tokens == found.tokens
