"""Chunks by the compiled module against the same chunks in torch, byte for byte, and what memory appends take."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache, side_codec, side_store
from kvassay.cache.native_rows import NativeRows
from kvassay.cache.step_append import LayerStep
from kvassay.core.format_names import parse_format
from kvassay.errors import NonFiniteError, RangeError
from kvassay.kernels import native_state
from kvassay.measures.memory_peak import watch_memory
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_operations import DIM, HEADS, small_config
from tests.cache.test_step_append import assert_same

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

FORMATS = [
    "int4-g64",
    "int8-token-head,sinks=3",
    "int4-g32,recent=20",
    "kivi-4",
    "kivi-2,recent=32,sinks=2",
    "nf4-g64",
    "fp8-e4m3-token-head,recent=5",
    "kv=int4:group32/had/seed=3",
    "bf16",
    "f16,recent=9",
    "k=int4:channel16,v=nf4:token-head,exact=bf16",
]
CHUNKS = (29, 1, 64, 7, 150, 1, 1, 33)
"""Tokens of each call: within a page, to its end, over several, and single ones in between."""
MIB = 1 << 20


@pytest.fixture
def in_torch(monkeypatch):
    """Make caches whose appends are torch's alone."""

    def without_module(make):
        with monkeypatch.context() as patch:
            patch.setattr(side_codec, "encodes", lambda spec: False)
            patch.setattr(side_store, "fit", lambda values, kept: False)
            patch.setattr(NativeRows, "is_there", staticmethod(lambda: False))
            patch.setattr(LayerStep, "of", classmethod(lambda cls, cohorts: None))
            return make()

    return without_module


def chunked(text: str, dtype: torch.dtype, chunks: tuple[int, ...] = CHUNKS, config=None) -> QuantizedCache:
    config = config or small_config()
    cache = QuantizedCache(config, parse_format(text), on_clip="count")
    generator = torch.Generator().manual_seed(8)
    wide = 3 * torch.randn(2, 2, 2, sum(chunks), HEADS, DIM, generator=generator)
    begin = 0
    for tokens in chunks:
        for layer in range(config.num_hidden_layers):
            # As a model gives them: heads and tokens swapped.
            states = wide[layer, :, :, begin : begin + tokens].to(dtype).transpose(2, 3)
            cache.update(states[0], states[1], layer)
        begin += tokens
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("text", FORMATS)
def test_chunks_are_those_of_torch(text, dtype, in_torch) -> None:
    assert_same(chunked(text, dtype), in_torch(lambda: chunked(text, dtype)))


@pytest.mark.parametrize("text", FORMATS)
def test_pages_do_not_depend_on_the_chunks(text) -> None:
    tokens = sum(CHUNKS)
    config = one_layer_config(HEADS, 2, DIM)  # a sliding layer codes less of a long chunk
    at_once = chunked(text, torch.bfloat16, (tokens - 1, 1), config)
    assert_same(chunked(text, torch.bfloat16, CHUNKS, config), at_once)


@pytest.mark.parametrize("place", [0, 1, 2, 40, 98, 99])
@pytest.mark.parametrize("text", ["int4-g64,sinks=2,recent=3", "kivi-4", "bf16", "kv=int4:group32/had"])
def test_one_bad_value_anywhere_in_a_chunk_is_refused_and_placed(text, place) -> None:
    """Whether it would be a sink, coded, or wait."""
    cache, untouched = chunked(text, torch.float32), chunked(text, torch.float32)
    keys, values = torch.randn(2, 2, HEADS, 100, DIM)
    values[1, 0, place, 4] = torch.nan
    placed = rf"values of layer 0: entries hold 1 NaN .* = \[1, 0, {place}, 4\]"
    with pytest.raises(NonFiniteError, match=placed):
        cache.update(keys, values, 0)
    assert_same(cache, untouched)
    values[1, 0, place, 4] = 1e38 if text == "bf16" else 1e6
    if text == "bf16":
        cache.update(keys, values, 0)
    else:
        with pytest.raises(RangeError, match="values of layer 0: values up to 1e\\+06 do not fit float16"):
            cache.update(keys, values, 0)
        assert_same(cache, untouched)


def full_size(text: str) -> QuantizedCache:
    """A layer of 8 KV heads of 128, whose appends hand out packed views."""
    config = one_layer_config(8, 4, 128)
    cache = QuantizedCache(config, parse_format(text))
    cache.update(torch.randn(1, 8, 100, 128), torch.randn(1, 8, 100, 128), 0)
    return cache


@pytest.mark.parametrize("text", ["int4-g64", "int8-token-head", "kivi-4", "nf4-g64", "kv=int4:group64/had", "bf16"])
def test_steps_take_less_than_a_mebibyte(text) -> None:
    """Page ends and whole blocks among them."""
    cache = full_size(text)
    states = torch.randn(2, 1, 8, 1, 128)
    cache.update(states[0], states[1], 0)
    with watch_memory() as watch:
        for _ in range(70):
            cache.update(states[0], states[1], 0)
    assert watch.peak.transient_nbytes < MIB


@pytest.mark.parametrize("text", ["int4-g64", "int8-token-head", "nf4-g64", "kv=int4:group64/had", "bf16"])
def test_a_chunk_takes_no_more_than_its_codes_beside_its_pages(text) -> None:
    """No copy in float32, nor one that is rounded: those are four times as large as int4's codes and more."""
    cache = full_size(text)
    states = torch.randn(2, 1, 8, 512, 128)
    stored = cache.ledger().persistent_nbytes
    with watch_memory() as watch:
        cache.update(states[0], states[1], 0)
    stored = cache.ledger().persistent_nbytes - stored
    assert watch.peak.transient_nbytes < 1.1 * stored + MIB / 16
