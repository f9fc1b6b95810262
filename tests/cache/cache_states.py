"""Caches in odd states, for tests that move a whole cache: every format, and what its operations leave behind."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvassay.cache import QuantizedCache
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.method_table import TABLE
from kvassay.formats import quantizer
from tests.cache.test_operations import DIM, HEADS, small_config

FORMATS = [
    *(preset.name for preset in PRESETS if not parse_format(preset.name).transforms_keys),
    *(f"kv={example}" for method in TABLE for example in method.examples),
    "k=int4:channel8,v=int2:group16,sinks=3,recent=20",
    "k=kvarn-4:tile16/had,v=int4:block8x16,recent=5",
    "int8-token-head,sinks=4,@0h1=int2:group16",
    "kivi-2,skip=1,exact=bf16",
]


def sample(rows: int, tokens: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def calibration_for(kv_format: KVFormat, seed: int = 99):
    """Static arrays of every layer; None for a format that has none."""
    if not any(spec.needs_calibration for spec in kv_format.specs):
        return None
    values = sample(1, 256, seed) * 1.5
    found = {}
    for index, layer in enumerate(geometry_from_config(small_config().to_dict()).layers):
        found[index] = tuple(
            tuple(
                quantizer(plan.spec).calibrate(values[:, list(group.heads)]) if plan.spec.needs_calibration else None
                for plan in (group.keys, group.values)
            )
            for group in head_groups(kv_format, index, layer)
        )
    return found


def new_cache(text: str, padding: list[int] | None = None) -> QuantizedCache:
    kv_format = parse_format(text)
    return QuantizedCache(
        small_config(), kv_format, calibration=calibration_for(kv_format), on_clip="count", left_padding=padding
    )


def append(cache: QuantizedCache, tokens: int, seed: int, rows: int | None = None) -> list[torch.Tensor]:
    """The same random tokens for the same seed; returns what the queries read."""
    rows = rows or cache.batch_size
    seen: list[torch.Tensor] = []
    for layer in range(2):
        seen += cache.update(sample(rows, tokens, seed + layer), sample(rows, tokens, seed + 50 + layer), layer)
    return seen


def held(cache: QuantizedCache) -> list[torch.Tensor]:
    return [side for layer in cache.quantized_layers for side in (layer.keys, layer.values) if side is not None]


def prompt(text: str) -> QuantizedCache:
    cache = new_cache(text)
    append(cache, 75, 1, rows=2)
    append(cache, 1, 2)
    return cache


def cut(text: str) -> QuantizedCache:
    """Blocks that a crop cut, twice, and tokens behind them."""
    cache = new_cache(text)
    append(cache, 22, 1, rows=2)
    for seed in (2, 3):
        cache.crop(-5)
        append(cache, 14, seed)
    return cache


def recorded(text: str) -> QuantizedCache:
    cache = new_cache(text)
    cache.activate_past_recording()
    append(cache, 90, 1, rows=1)
    append(cache, 1, 2)
    cache.crop(-20)
    append(cache, 3, 3)
    return cache


def padded(text: str) -> QuantizedCache:
    """Rows of three lengths, one of which holds nothing yet in its own pages."""
    cache = new_cache(text, [0, 40, 3, 0])
    append(cache, 38, 1, rows=4)
    cache.reorder_cache(torch.tensor([3, 1, 2, 0]))
    append(cache, 1, 2)
    return cache


def shared(text: str) -> QuantizedCache:
    """A repeated batch that went its own ways, joined by rows of a fork that was cut."""
    cache = new_cache(text)
    append(cache, 37, 1, rows=1)
    other = cache.fork()
    cache.batch_repeat_interleave(3)
    append(cache, 1, 2)
    other.crop(-7)
    cache.take_rows(other)
    return cache


def slid(text: str) -> QuantizedCache:
    """A sliding layer that has left many pages behind."""
    cache = new_cache(text)
    append(cache, 130, 1, rows=1)
    for seed in range(2, 6):
        append(cache, 21, seed)
    append(cache, 1, 7)
    return cache


def emptied(text: str) -> QuantizedCache:
    """Cropped to nothing: rows without tokens."""
    cache = new_cache(text)
    append(cache, 30, 1, rows=2)
    cache.crop(-30)
    return cache


STATES: dict[str, Callable[[str], QuantizedCache]] = {
    made.__name__: made for made in (prompt, cut, recorded, padded, shared, slid, emptied, new_cache)
}
