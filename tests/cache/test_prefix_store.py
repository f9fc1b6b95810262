"""Shared prefixes: what a lookup gives is what appending would have given, and nothing is given across an identity."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvassay.cache import PrefixIdentity, PrefixStore, QuantizedCache
from kvassay.cache.prefix_results import PrefixBound, PrefixSource
from kvassay.core.format_names import parse_format
from kvassay.core.prefix_blocks import block_grid, block_keys, snapshot_key, token_array
from kvassay.errors import CacheStateError, ForeignFormatError
from kvassay.formats import Calibration, quantizer
from tests import tiny_models
from tests.cache.prefix_cases import (
    BLOCK,
    HYBRID,
    LLAMA,
    TOKENS,
    append,
    assert_prefix_of,
    assert_same_state,
    empty_cache,
    filled_cache,
    identity_of,
    states,
)
from tests.cache.test_operations import FORMATS
from tests.thorough import times


@settings(max_examples=times(30, 100), deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    sinks=st.sampled_from([0, 0, 4, 5, 70]),
    recent=st.sampled_from([0, 1, 32, 40]),
    skip=st.sampled_from(["none", "0"]),
    hybrid=st.booleans(),
    length=st.integers(64, 420),
    shared=st.integers(0, 600),
    chunk=st.sampled_from([16, 40, 1000]),
    folder=st.booleans(),
)
def test_b55_a_cache_that_began_with_shared_pages_is_the_one_that_appended_all(
    tmp_path_factory, name, sinks, recent, skip, hybrid, length, shared, chunk, folder
) -> None:
    """B55, R20: the longest usable prefix, never a mixed page, and the same state at every later token."""
    config = HYBRID if hybrid else LLAMA
    kv_format = parse_format(f"{name},sinks={sinks},recent={recent},skip={skip}")
    path = tmp_path_factory.mktemp("prefixes") if folder else None

    def empty() -> QuantizedCache:
        return QuantizedCache(config, kv_format, on_clip="count")

    cache, store = empty(), PrefixStore(folder=path)
    identity = identity_of(cache)
    given_states = states(470, len(cache.layers))
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
    event(f"hybrid={hybrid}, found something: {found.tokens > 0}")
    assert found.tokens <= min(shared, len(prompt) - 1)
    assert found.cache.get_seq_length() == found.tokens
    assert not found.damaged
    grid = block_grid(kv_format, cache.geometry)
    put_tokens = cache.get_seq_length()
    if not hybrid:
        # Everything that is coded in the cache that was put, and will be in this one, is found.
        full = grid.whole_blocks(min(shared, put_tokens))
        assert found.tokens == grid.end(min(full, grid.committed_blocks(put_tokens)))
    expected = empty()
    append(expected, other_states, 0, found.tokens)
    for step in (1, 30, 2):
        begin = found.cache.get_seq_length()
        end = 440 if begin == found.tokens else begin + step
        append(found.cache, other_states, begin, end)
        append(expected, other_states, begin, end)
        assert_same_state(found.cache, expected)
    again = store.lookup(prompt, identity, empty())
    assert again.tokens == found.tokens


@pytest.mark.parametrize(
    ("tokens", "usable", "bound"),
    [
        (TOKENS, 3 * BLOCK, PrefixBound.LAST_BLOCK),
        (3 * BLOCK, 2 * BLOCK, PrefixBound.LAST_TOKEN),
        (3 * BLOCK + 1, 3 * BLOCK, PrefixBound.LAST_BLOCK),
        (BLOCK - 1, 0, PrefixBound.LAST_BLOCK),
        (0, 0, PrefixBound.LAST_BLOCK),
    ],
)
def test_b55_how_much_of_a_prompt_is_usable_and_why_not_more(tokens, usable, bound) -> None:
    store, cache = PrefixStore(), filled_cache()
    identity = identity_of(cache)
    assert store.put(cache, range(TOKENS), identity).new_blocks == 3
    found = store.lookup(range(tokens), identity, empty_cache())
    assert (found.tokens, found.bound) == (usable, bound)
    assert found.matched_tokens == tokens // BLOCK * BLOCK
    assert found.source is (PrefixSource.BLOCKS if usable else PrefixSource.NOTHING)


def test_b55_tokens_that_would_still_be_exact_are_left_to_run() -> None:
    cache = filled_cache("kivi-4,recent=32", tokens=300)
    store, identity = PrefixStore(), identity_of(cache)
    store.put(cache, range(300), identity)
    found = store.lookup(range(200), identity, empty_cache("kivi-4,recent=32"))
    assert (found.tokens, found.matched_tokens, found.bound) == (128, 192, PrefixBound.STILL_EXACT)
    assert store.statistics.hit_rate == 128 / 200
    found = store.lookup([*range(100), 7, *range(101, 200)], identity, empty_cache("kivi-4,recent=32"))
    assert (found.tokens, found.bound) == (64, PrefixBound.NOT_STORED)


def test_a_sliding_layer_needs_its_last_window() -> None:
    """Put once at the end, a hybrid has lost what the blocks in the middle need; put chunk by chunk, it has it."""
    given_states, ids = states(700), range(700)
    once, chunked = PrefixStore(), PrefixStore()
    cache = QuantizedCache(HYBRID, "int8-token-head,recent=8")
    identity = identity_of(cache)
    for end in range(100, 701, 100):
        append(cache, given_states, end - 100, end)
        chunked.put(cache, ids[:end], identity)
    once.put(cache, ids, identity)
    # 10 blocks are coded; the sliding layers, which see 200 tokens, hold blocks 8 and 9 and need 6 and 7 too.
    found = once.lookup(ids, identity, QuantizedCache(HYBRID, "int8-token-head,recent=8"))
    assert (found.tokens, found.matched_tokens, found.bound) == (0, 640, PrefixBound.WINDOW)
    for prompt, usable in ((ids, 640), (range(333), 320)):
        found = chunked.lookup(prompt, identity, QuantizedCache(HYBRID, "int8-token-head,recent=8"))
        assert (found.tokens, found.bound) == (usable, PrefixBound.LAST_BLOCK)


def test_blocks_of_a_cropped_cache_are_those_before_the_cut() -> None:
    cache = filled_cache("kivi-4", tokens=300)
    cache.crop(-(300 - 150))
    append(cache, states(300, 3, seed=1), 150, 300)
    store, identity = PrefixStore(), identity_of(cache)
    ids = [*range(150), *range(1150, 1300)]
    store.put(cache, ids, identity)
    found = store.lookup(ids, identity, empty_cache("kivi-4"))
    assert found.tokens == 128
    assert_prefix_of(found.cache, cache)


def test_a_format_without_common_block_bounds_says_so_and_keeps_snapshots() -> None:
    config, name = HYBRID, "kivi-4,sinks=4"
    cache = QuantizedCache(config, name)
    append(cache, states(200), 0, 200)
    assert "use sinks=0, or snapshots" in str(block_grid(cache.kv_format, cache.geometry).obstacle)
    store, identity = PrefixStore(), identity_of(cache)
    assert store.put(cache, range(200), identity, snapshot=True).new_blocks == 0
    assert store.lookup(range(150), identity, QuantizedCache(config, name)).bound is PrefixBound.NO_BLOCKS
    found = store.lookup(range(210), identity, QuantizedCache(config, name))
    assert (found.tokens, found.source) == (200, PrefixSource.SNAPSHOT)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_of_a_padded_batch_is_stored_as_if_it_ran_alone(row) -> None:
    padding = [0, 30, 70]
    given_states = states(270, batch=3)
    cache = empty_cache("kivi-4,sinks=3,recent=16", left_padding=padding)
    append(cache, given_states, 0, 270)
    store, identity = PrefixStore(), identity_of(cache)
    ids = range(270 - padding[row])
    store.put(cache, ids, identity, row=row, snapshot=True)
    alone = empty_cache("kivi-4,sinks=3,recent=16")
    own = [tuple(a[row : row + 1, :, padding[row] :] for a in sides) for sides in given_states]
    append(alone, own, 0, len(ids))
    longer = store.lookup([*ids, 5], identity, empty_cache("kivi-4,sinks=3,recent=16"))
    assert longer.source is PrefixSource.SNAPSHOT
    assert_same_state(longer.cache, alone)
    found = store.lookup(ids, identity, empty_cache("kivi-4,sinks=3,recent=16"))
    assert found.source is PrefixSource.BLOCKS
    append(found.cache, own, found.tokens, len(ids))
    assert_same_state(found.cache, alone)


def test_what_is_refused() -> None:
    store, cache = PrefixStore(), filled_cache()
    identity = identity_of(cache)
    with pytest.raises(CacheStateError, match="holds 200 tokens and 201 were named"):
        store.put(cache, range(TOKENS + 1), identity)
    with pytest.raises(CacheStateError, match="row 1 was asked for; the cache has 1 rows"):
        store.put(cache, range(TOKENS), identity, row=1)
    with pytest.raises(CacheStateError, match="row 0 was asked for; the cache has 0 rows"):
        store.put(empty_cache(), [], identity)
    with pytest.raises(CacheStateError, match="shared tokens go into an empty"):
        store.lookup(range(TOKENS), identity, cache)
    with pytest.raises(CacheStateError, match="made without left_padding"):
        store.lookup(range(TOKENS), identity, empty_cache(left_padding=[3]))
    for wrong in ([-1, 2], [0.5], [[1], [2]], ["a"]):
        with pytest.raises(CacheStateError, match="expected whole numbers from 0"):
            store.lookup(wrong, identity, empty_cache())
    assert store.statistics == (0, 0, 0, 0, 0, 0, 0)


CLAIMED = {
    "model": "other",
    "revision": "r2",
    "tokenizer": "t2",
    "rope": "yarn",
    "first_position": 1,
    "compute_dtype": "bfloat16",
    "adapter": "lora",
    "salt": "user 2",
}
"""Fields that the caller states, with another value."""


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("field", PrefixIdentity.model_fields)
def test_r20_r21_a_lookup_under_another_identity_finds_nothing(tmp_path, field, in_folder) -> None:
    store, cache = PrefixStore(folder=tmp_path if in_folder else None), filled_cache()
    identity = identity_of(cache)
    store.put(cache, range(TOKENS), identity, snapshot=True)
    if in_folder:
        store = PrefixStore(folder=tmp_path)
    assert store.lookup(range(TOKENS), identity, empty_cache()).tokens == 3 * BLOCK
    if field in CLAIMED:
        other = identity_of(cache, **{field: CLAIMED[field]})
        assert store.lookup(range(TOKENS), other, empty_cache()).matched_tokens == 0
    else:
        value = 2 if field == "layout_version" else "0" * 64
        other = identity.model_copy(update={field: value})
        with pytest.raises(ForeignFormatError, match=f"has {field} "):
            store.lookup(range(TOKENS), other, empty_cache())
        with pytest.raises(ForeignFormatError, match=f"has {field} "):
            store.put(cache, range(TOKENS), other)
    assert other.digest != identity.digest
    tokens, grid = token_array(range(TOKENS)), block_grid(cache.kv_format, cache.geometry)
    assert not set(block_keys(identity.digest, tokens, grid)) & set(block_keys(other.digest, tokens, grid))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("int8-token-head,recent=1", {}),
        ("int8-token-head,sinks=1", {}),
        ("int8-token-head,skip=1", {}),
        ("int8-token-head,exact=bf16", {}),
        ("k=int8:token-head,v=int8:token", {}),
        ("int4-g64", {}),
        ("int8-token-head", {"on_clip": "count"}),
        ("int8-token-head", {"config": tiny_models.tiny_config("llama", num_key_value_heads=1)}),
        ("int8-token-head", {"config": tiny_models.tiny_config("llama", num_hidden_layers=4)}),
        ("int8-token-head", {"config": tiny_models.tiny_config("llama", head_dim=32)}),
        ("int8-token-head", {"config": tiny_models.tiny_config("gemma3")}),
    ],
)
def test_r8_r20_b52_another_cache_has_another_identity(name, options) -> None:
    """Format, layout, geometry: equal tokens alone authorise nothing, equal shapes neither."""
    cache, other = filled_cache(), empty_cache(name, **options)
    store = PrefixStore()
    store.put(cache, range(TOKENS), identity_of(cache), snapshot=True)
    assert store.lookup(range(TOKENS), identity_of(other), other).matched_tokens == 0
    with pytest.raises(ForeignFormatError, match="make the identity from a cache of this format"):
        store.lookup(range(TOKENS), identity_of(cache), other)


def test_r20_a_format_copied_with_other_fields_has_its_own_identity() -> None:
    """A copy of a frozen model carries what was cached in it."""
    one = parse_format("int4-g64")
    assert one.digest
    other = one.model_copy(update={"recent": 7})
    assert identity_of(empty_cache(one)).digest != identity_of(empty_cache(other)).digest


def test_r21_static_scales_are_part_of_the_identity() -> None:
    """Equal codes under other scales are other values; where scales came from does not matter."""
    spec = parse_format("int8-tensor").keys

    def calibration(largest: float, source: str) -> dict:
        found = quantizer(spec).calibrate(torch.full((1, 2, 8, 64), largest))
        return {layer: ((Calibration(found.parameters, source),) * 2,) for layer in range(3)}

    def cache(largest: float, source: str = "a") -> QuantizedCache:
        return empty_cache("int8-tensor", calibration=calibration(largest, source), on_clip="count")

    first = cache(4.0)
    append(first, states(TOKENS), 0, TOKENS)
    store = PrefixStore()
    store.put(first, range(TOKENS), identity_of(first))
    for other, tokens in ((cache(4.0, "b"), 3 * BLOCK), (cache(5.0), 0)):
        assert store.lookup(range(TOKENS), identity_of(other), other).tokens == tokens
    with pytest.raises(ForeignFormatError, match="has scale_digest"):
        store.lookup(range(TOKENS), identity_of(first), cache(5.0))


def test_r21_key_transforms_are_part_of_the_identity() -> None:
    found = {}
    for seed in (0, 0, 1):
        model = tiny_models.tiny_model("qwen2", seed=seed)
        cache = QuantizedCache.for_model(model, "int4-g64,keybias=removed")
        found.setdefault(seed, set()).add(identity_of(cache).scale_digest)
    plain = identity_of(QuantizedCache(model.config, "int4-g64")).scale_digest
    assert [len(one) for one in found.values()] == [1, 1]
    assert len(found[0] | found[1] | {plain}) == 3


def test_the_identity_of_a_model_moves_with_its_weights_and_its_rope() -> None:
    digests = set()
    for seed, changes in ((0, {}), (1, {}), (0, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}})):
        model = tiny_models.tiny_model("llama", seed=seed, **changes)
        cache = QuantizedCache(model.config, "int8-token-head")
        identities = [PrefixIdentity.for_model(model, cache, tokenizer="t") for _ in range(2)]
        assert identities[0] == identities[1]
        digests.add(identities[0].digest)
        digests.add(PrefixIdentity.for_model(model.float(), cache, tokenizer="t").digest)
    assert len(digests) == 6


KEYS = """
import json
from tests.cache.prefix_cases import empty_cache, identity_of
from kvassay.core.prefix_blocks import block_grid, block_keys, snapshot_key, token_array
cache = empty_cache("kivi-4,sinks=2")
identity, tokens, grid = identity_of(cache), token_array(list(range(300))), block_grid(cache.kv_format, cache.geometry)
keys = list(block_keys(identity.digest, tokens, grid))
print(json.dumps([identity.digest, *keys, snapshot_key(identity.digest, keys, tokens, grid)]))
"""


def test_keys_are_equal_in_two_processes() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", KEYS], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(set(json.loads(found[0]))) == 6


@settings(max_examples=times(30, 60), deadline=None)
@given(st.data())
def test_keys_differ_with_any_token_before_or_in_the_block(data) -> None:
    cache = empty_cache()
    grid = block_grid(cache.kv_format, cache.geometry)
    tokens = data.draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=4 * BLOCK))
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = list(tokens)
    other[place] = data.draw(st.integers(0, 2**40).filter(lambda token: token != tokens[place]))
    ones, others = (list(block_keys("0" * 64, token_array(text), grid)) for text in (tokens, other))
    whole = place // BLOCK
    assert ones[:whole] == others[:whole]
    assert not set(ones[whole:]) & set(others)
    snapshots = [
        snapshot_key("0" * 64, keys, token_array(text), grid)
        for keys, text in ((ones, tokens), (others, other), (ones, [*tokens, 0]))
    ]
    assert len({*snapshots, *ones}) == 3 + len(ones)
