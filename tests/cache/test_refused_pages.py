"""Memory that is refused in the middle of an append: nothing is added anywhere, and the next try succeeds."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.slab_storage import MemorySlabs
from kvassay.core.geometry import Owner
from kvassay.core.ledger import predict_ledger
from tests.cache.test_operations import DIM, HEADS, small_config


def appended(cache: QuantizedCache, tokens: int, seed: int) -> None:
    states = torch.randn(2, 2, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))
    for layer in range(2):
        cache.update(states[0], states[1], layer)
        cache.quantized_layers[layer].settle()


def held(cache: QuantizedCache) -> list[torch.Tensor]:
    return [states.clone() for layer in cache.quantized_layers for states in (layer.keys, layer.values)]


def refused(cache: QuantizedCache, tokens: int, seed: int, after: int, monkeypatch) -> bool:
    """Append to the full layer where no further slab is given after some; True if that failed."""
    left = after
    add = MemorySlabs.add

    def limited(self, number: int, pages: int) -> None:
        nonlocal left
        if not left:
            raise MemoryError("no page")
        left -= 1
        add(self, number, pages)

    states = torch.randn(2, 2, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))
    with monkeypatch.context() as patch:
        patch.setattr(MemorySlabs, "add", limited)
        try:
            cache.update(states[0], states[1], 0)
            cache.quantized_layers[0].settle()
        except MemoryError:
            return True
    return False


@pytest.mark.parametrize("tokens", [1, 40, 130])
@pytest.mark.parametrize("text", ["kivi-4,recent=32,sinks=3", "int8-token-head", "int4-g64,recent=20", "f16"])
@pytest.mark.parametrize("past", [0, 100, 112])
def test_a_fork_that_gets_no_page_stays_as_it_was_and_so_do_the_others(past, text, tokens, monkeypatch) -> None:
    """Every allocation of the append is refused once; forks share pools, so free pages of one are not another's."""
    cache = QuantizedCache(small_config(), text)
    if past:
        appended(cache, past, 1)
    fork, third = cache.fork(), cache.fork()
    expected = held(cache) if past else []
    ledgers = [each.ledger() for each in (cache, fork)] if past else []
    after = 0
    while refused(fork, tokens, 2, after, monkeypatch):
        after += 1
        if past:
            assert [each.ledger() for each in (cache, fork)] == ledgers
            for each in (cache, fork, third):
                assert all(map(torch.equal, held(each), expected))
    assert after >= (2 if past else 1)
    whole = QuantizedCache(small_config(), text)
    if past:
        appended(whole, past, 1)
    assert not refused(whole, tokens, 2, 1000, monkeypatch)
    assert torch.equal(fork.quantized_layers[0].keys, whole.quantized_layers[0].keys)
    assert torch.equal(fork.quantized_layers[0].values, whole.quantized_layers[0].values)


@pytest.mark.parametrize("text", ["kivi-4,recent=32", "int4-g64,recent=100,sinks=2", "int8-token-head"])
def test_a_fork_alone_again_has_the_predicted_bytes(text) -> None:
    """Whatever forks had copied beside it is given back as soon as they are gone and a token comes."""
    cache = QuantizedCache(small_config(), text)
    appended(cache, 70, 1)
    forks = [cache.fork() for _ in range(3)]
    for number in range(30):
        for fork in (*forks, cache):
            appended(fork, 1, number)
    del forks, fork
    cache.crop(0)
    for number in range(90):
        appended(cache, 1, number)
    full, predicted = cache.ledger(), predict_ledger(cache.geometry, cache.kv_format, 190, 2)
    for found, expected in ((full.keys_nbytes, predicted.keys_nbytes), (full.values_nbytes, predicted.values_nbytes)):
        # A page's number stays where it is, so that holes between numbers may remain.
        assert {**found, Owner.BLOCK_TABLE: 0} == {**expected, Owner.BLOCK_TABLE: 0}
