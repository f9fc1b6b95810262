"""Forks that share pages, each in a thread of its own."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kvassay.cache import QuantizedCache
from tests.tiny_models import tiny_config

CONFIG = tiny_config("llama")


def append(cache: QuantizedCache, number: int, seed: int) -> None:
    states = torch.Generator().manual_seed(seed)
    for layer in range(3):
        cache.update(*torch.randn(2, 1, 2, number, 64, generator=states), layer)


def go_on(cache: QuantizedCache, seed: int) -> list[torch.Tensor]:
    """What a fork holds after steps, crops, forks of its own and chunks."""
    for step in range(30):
        append(cache, 1 if step % 5 else 17, 100 * seed + step)
        if step % 7 == 0:
            cache.fork().batch_repeat_interleave(2)
            cache.crop(-3)
    return [side for layer in cache.quantized_layers for side in (layer.keys, layer.values)]


@pytest.fixture
def many_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("text", ["int8-token-head", "k=int4:channel32,v=int4:token/group32,sinks=4,recent=8"])
def test_forks_in_threads_hold_what_they_hold_one_after_the_other(text, many_switches) -> None:
    cache = QuantizedCache(CONFIG, text)
    append(cache, 100, 1)
    expected = [go_on(cache.fork(), seed) for seed in range(4)]
    for _ in range(3):
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(go_on, [cache.fork() for _ in range(4)], range(4)))
        for one, other in zip(found, expected, strict=True):
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_a_pickled_cache_goes_on() -> None:
    cache = QuantizedCache(CONFIG, "int8-token-head")
    append(cache, 100, 1)
    other = pickle.loads(pickle.dumps(cache))
    assert all(torch.equal(*pair) for pair in zip(go_on(cache, 1), go_on(other, 1), strict=True))
