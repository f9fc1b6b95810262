"""Prefixes in memory: what is counted, what goes first, what forks and continuations cost."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cache import PrefixStore, QuantizedCache
from kvassay.cache.prefix_memory import snapshot_pages
from kvassay.cache.prefix_results import PrefixSource
from tests.cache.prefix_cases import (
    BLOCK,
    LAYERS,
    TOKENS,
    append,
    assert_same_state,
    empty_cache,
    filled_cache,
    identity_of,
    states,
)

NAMES = ["f16", "int8-token-head", "kivi-4,recent=32", "kivi-2,sinks=4,recent=16", "int4-g64,skip=1,sinks=3"]


def storages_nbytes(tensors) -> int:
    """Real storages, each once."""
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def text(number: int, tokens: int = TOKENS) -> list[int]:
    return [1000 + number, *range(1, tokens)]


@pytest.mark.parametrize("name", NAMES)
def test_r19_kept_bytes_are_the_real_storages_each_once(name) -> None:
    store = PrefixStore()
    cache = filled_cache(name, tokens=300)
    identity = identity_of(cache)
    store.put(cache, text(0, 300), identity)
    once = store.nbytes
    assert once == storages_nbytes(store.storages()) > 0
    store.put(cache, text(0, 300), identity)
    assert store.nbytes == once, "a text that is there is not stored again"
    store.put(cache, text(1, 300), identity)
    assert store.nbytes == storages_nbytes(store.storages()) == 2 * once
    found = store.lookup(text(0, 300), identity, empty_cache(name))
    assert storages_nbytes(store.storages()) == 2 * once, "a lookup copies no page"
    append(found.cache, states(20), 0, 20)
    assert store.nbytes == 2 * once, "what a continuation adds is its own"
    del found
    store.clear()
    assert store.nbytes == storages_nbytes(store.storages()) == 0


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_a_live_cache_are_not_dropped(name) -> None:
    cache = filled_cache(name, tokens=300)
    identity = identity_of(cache)
    probe = PrefixStore()
    probe.put(cache, text(0, 300), identity)
    store = PrefixStore(limit_nbytes=probe.nbytes)
    store.put(cache, text(0, 300), identity)
    live = store.lookup(text(0, 300), identity, empty_cache(name))
    assert live.tokens
    expected = live.cache.layers[0].keys.clone()
    put = store.put(cache, text(1, 300), identity)
    assert "limit_nbytes" in str(put.left_out)
    assert put.new_blocks == 0
    assert store.lookup(text(0, 300), identity, empty_cache(name)).tokens == live.tokens
    assert torch.equal(live.cache.layers[0].keys, expected)
    del live
    gc.collect()
    assert store.put(cache, text(1, 300), identity).left_out is None
    assert store.lookup(text(0, 300), identity, empty_cache(name)).tokens == 0
    assert store.nbytes == storages_nbytes(store.storages()) <= probe.nbytes


def test_the_longest_unused_texts_go_first_and_from_their_end() -> None:
    cache = filled_cache()
    identity = identity_of(cache)
    probe = PrefixStore()
    probe.put(cache, text(0), identity)
    store = PrefixStore(limit_nbytes=probe.nbytes * 5 // 2)
    store.put(cache, text(0), identity)
    store.put(cache, text(1), identity)
    store.lookup(text(0), identity, empty_cache())
    store.put(cache, text(2), identity)
    found = [store.lookup(text(number), identity, empty_cache()).tokens // BLOCK for number in range(3)]
    assert found == [3, 1, 3]
    assert store.nbytes <= probe.nbytes * 5 // 2


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    limit=st.integers(0, 3_000_000),
    steps=st.lists(st.tuples(st.sampled_from(["put", "snapshot", "lookup", "drop"]), st.integers(0, 4)), max_size=14),
)
def test_any_use_keeps_the_limit_and_every_answer_right(name, limit, steps) -> None:
    """At every step: kept pages fit the limit but for those in live caches, and what is found is what was put."""
    store, live = PrefixStore(limit_nbytes=limit), []
    caches = [filled_cache(name, tokens=210, seed=number) for number in range(5)]
    identity = identity_of(caches[0])
    for what, number in steps:
        match what:
            case "put" | "snapshot":
                store.put(caches[number], text(number, 210), identity, snapshot=what == "snapshot")
            case "lookup":
                found = store.lookup(text(number, 240), identity, empty_cache(name))
                append(found.cache, states(240, seed=number), found.tokens, 240)
                whole = filled_cache(name, tokens=240, seed=number)
                if found.source is not PrefixSource.SNAPSHOT:
                    append_states = states(240, seed=number)
                    # Blocks hold what the cache of 210 tokens coded.
                    other = empty_cache(name)
                    append(other, states(210, seed=number), 0, found.tokens)
                    append(other, append_states, found.tokens, 240)
                    whole = other
                else:
                    whole = empty_cache(name)
                    append(whole, states(210, seed=number), 0, 210)
                    append(whole, states(240, seed=number), 210, 240)
                assert_same_state(found.cache, whole)
                live.append(found.cache)
            case "drop":
                live = live[1:]
                found = None
        held = {
            (id(pool), page)
            for cache in (*live, *caches)
            for pool, pages in snapshot_pages(cache)
            for page in pages.tolist()
        }
        unneeded = [
            key
            for key, entry in store._memory.items()
            if not any((id(pool), page) in held for pool, pages in entry.held for page in pages.tolist())
        ]
        assert store.nbytes <= limit or not unneeded
    live, found = [], None
    store.clear()
    assert store.nbytes == storages_nbytes(store.storages()) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_goes_on_as_the_cache_itself_would(name) -> None:
    given_states = states(400)
    cache = empty_cache(name)
    append(cache, given_states, 0, 217)
    store, identity = PrefixStore(), identity_of(cache)
    assert store.put(cache, text(0, 217), identity, snapshot=True).snapshot
    assert store.lookup(text(0, 217), identity, empty_cache(name)).source is PrefixSource.BLOCKS
    found = [store.lookup(text(0, 300), identity, empty_cache(name)) for _ in range(3)]
    assert {(one.tokens, one.source) for one in found} == {(217, PrefixSource.SNAPSHOT)}
    for number, one in enumerate((cache, *(one.cache for one in found))):
        append(one, states(400, seed=number % 2), 217, 300)
    uninterrupted = empty_cache(name)
    append(uninterrupted, given_states, 0, 217)
    append(uninterrupted, given_states, 217, 300)
    for one in (cache, found[1].cache):
        assert_same_state(one, uninterrupted)
    # The longest snapshot wins, and a longer run of blocks wins over a snapshot.
    store.put(cache, text(0, 300), identity, snapshot=True)
    assert store.lookup(text(0, 301), identity, empty_cache(name)).tokens == 300
    longer = filled_cache(name, tokens=500)
    store.put(longer, text(0, 500), identity)
    assert store.lookup(text(0, 500), identity, empty_cache(name)).tokens > 300


def test_a_recording_cache_stays_one_and_a_snapshot_makes_none() -> None:
    cache = filled_cache("kivi-4,recent=16")
    store, identity = PrefixStore(), identity_of(cache)
    store.put(cache, text(0), identity, snapshot=True)
    for tokens in (TOKENS, TOKENS + 1):
        for recording in (False, True):
            empty = empty_cache("kivi-4,recent=16")
            if recording:
                empty.activate_past_recording()
            found = store.lookup(text(0, tokens), identity, empty)
            assert found.tokens
            assert {layer.record_past for layer in found.cache.layers} == {recording}
            assert {one.recording for layer in found.cache.layers for one in layer.stores} == {recording}


def test_a_continuation_goes_back_to_the_store_without_a_copy() -> None:
    """Pages that a continuation made are in the store's pools already: the second put copies nothing."""
    store, first = PrefixStore(), filled_cache()
    identity = identity_of(first)
    store.put(first, text(0), identity)
    found = store.lookup(text(0), identity, empty_cache())
    append(found.cache, states(200, seed=5), 0, 200)
    before = storages_nbytes(store.storages())
    put = store.put(found.cache, text(0, 3 * BLOCK + 200), identity)
    assert (put.new_blocks, put.stored_tokens) == (3, 6 * BLOCK)
    assert storages_nbytes(store.storages()) == before


@pytest.mark.parametrize("name", ["kivi-4", "int8-token-head"])
def test_a_hundred_forks_of_one_prefix_share_its_pages(name) -> None:
    """In less than 1.05x the pages of one plus their own tokens; `benchmarks/cache_forks.py` prints the full figure."""
    tokens, count = 1000, 100
    cache = filled_cache(name, tokens=tokens)
    store, identity = PrefixStore(), identity_of(cache)
    store.put(cache, text(0, tokens), identity)
    del cache
    gc.collect()
    one = store.lookup(text(0, tokens), identity, empty_cache(name))
    alone, begin = storages_nbytes(one.cache.storages()), one.tokens
    forks = [store.lookup(text(0, tokens), identity, empty_cache(name)).cache for _ in range(count)]
    more = [forks[0].fork() for _ in range(count)]
    together = storages_nbytes(slab for fork in (*forks, *more, one.cache) for slab in fork.storages())
    assert together == alone
    for number, fork in enumerate(forks):
        append(fork, states(1, seed=number), 0, 1)
    own = storages_nbytes(slab for fork in forks for slab in fork.storages()) - alone
    # Of its own a fork has what any cache of this length takes behind the coded prefix: its tail, or a coded page.
    expected = sum(
        one.parts.tail.table.shape[1] * one.tail_layout.nbytes
        + (one.coded_pages[0].table.shape[1] - begin // one.coded_layout.tokens) * one.coded_layout.nbytes
        for layer in forks[0].layers
        for one in layer.stores
    )
    assert own == count * expected
    assert len(forks[0].layers) == LAYERS


def test_many_continuations_of_one_prefix_never_change_each_other() -> None:
    name = "kivi-4,recent=16,sinks=2"
    store, cache = PrefixStore(), filled_cache(name, tokens=300)
    identity = identity_of(cache)
    store.put(cache, text(0, 300), identity)
    lookups = [store.lookup(text(0, 300), identity, empty_cache(name)) for _ in range(6)]
    begin = lookups[0].tokens
    expected: list[QuantizedCache] = []
    for number, found in enumerate(lookups):
        other = empty_cache(name)
        append(other, states(300), 0, begin)
        append(other, states(600, seed=number), begin, 400)
        append(found.cache, states(600, seed=number), begin, 400)
        expected.append(other)
    lookups[2].cache.crop(-30)
    expected[2].crop(-30)
    for number, found in enumerate(lookups):
        for step in range(3):
            at = found.cache.get_seq_length()
            append(found.cache, states(600, seed=number + step), at, at + 33)
            append(expected[number], states(600, seed=number + step), at, at + 33)
    for found, other in zip(lookups, expected, strict=True):
        assert_same_state(found.cache, other)
