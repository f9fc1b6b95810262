"""Fills a real QuantizedCache with synthetic keys and values of a model's shape, and counts what it then holds.

How many bytes a format stores does not depend on the values, so no weights are needed. One chunk of Gaussian numbers
serves every layer and every append; each append goes through `update`, as a model's would. The last token of the
context is a decode step of its own, attention included, whose transient memory is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import NAME, packed_attention
from kvassay.cache.cohorts import LayerCalibration
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.ledger import ByteLedger
from kvassay.errors import CapacityError
from kvassay.formats import Calibration, quantizer
from kvassay.measures.memory_peak import watch_memory

CHUNK_NBYTES = 64 * 2**20
"""Keys and values of one layer in one append, unless that made more than `MOST_CHUNKS` of the context."""
MOST_CHUNKS = 16
"""Each append takes some milliseconds a layer whatever its length."""
_CALIBRATION_TOKENS = 256
_SEED = 31


class Filled(NamedTuple):
    """A cache at one length. `transient_nbytes` belongs to the last step and is None before it."""

    tokens: int
    ledger: ByteLedger
    """Of the real storages."""
    transient_nbytes: int | None


def synthetic_config(geometry: CacheGeometry) -> PretrainedConfig:
    """A config that says no more than the shape of the cache; its geometry reads back equal, layer by layer."""
    first = geometry.layers[0]
    fields: dict[str, Any] = {
        "num_hidden_layers": geometry.num_layers,
        "num_attention_heads": geometry.query_heads,
        "num_key_value_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "layer_types": [
            "full_attention" if layer.sliding_window is None else "sliding_attention" for layer in geometry.layers
        ],
        "per_layer_config": {
            str(index): {
                "num_key_value_heads": layer.kv_heads,
                "head_dim": layer.head_dim,
                "v_head_dim": layer.value_dim,
                "sliding_window": layer.sliding_window or 1,  # read for sliding layers alone
            }
            for index, layer in enumerate(geometry.layers)
        },
    }
    return PretrainedConfig(**fields)


def check_fillable(kv_format: KVFormat) -> None:
    """Raise CapacityError for formats whose keys need a model's weights."""
    if kv_format.transforms_keys:
        raise CapacityError(
            f"{kv_format.name} needs the model's key bias and rotary embedding, and a fill has no weights; run it "
            "without keybias= and rope=, which store the same bytes"
        )


def synthetic_cache(geometry: CacheGeometry, kv_format: KVFormat) -> QuantizedCache:
    """An empty cache; static scales are calibrated on numbers of the kind that will fill it."""
    check_fillable(kv_format)

    calibration = {index: layer_calibration(kv_format, index, layer) for index, layer in enumerate(geometry.layers)}
    config = synthetic_config(geometry)
    config._attn_implementation = NAME
    return QuantizedCache(config, kv_format, calibration=calibration, on_clip="count", attention="tiled")


def layer_calibration(kv_format: KVFormat, index: int, layer: LayerGeometry) -> LayerCalibration:
    """Static arrays of one layer, from numbers of the kind that will fill it."""

    def scales(plan: SidePlan, heads: int, dim: int) -> Calibration | None:
        if not plan.spec.needs_calibration:
            return None
        return quantizer(plan.spec).calibrate(_gaussian(1, heads, _CALIBRATION_TOKENS, dim, torch.float32))

    return tuple(
        (scales(group.keys, len(group.heads), layer.head_dim), scales(group.values, len(group.heads), layer.value_dim))
        for group in head_groups(kv_format, index, layer)
    )


def chunk_ends(geometry: CacheGeometry, kv_format: KVFormat, batch: int, stops: list[int]) -> list[int]:
    """Lengths after each append: no chunk larger than allowed, and one ends at every stop."""
    itemsize = getattr(torch, kv_format.exact_dtype).itemsize
    token_nbytes = max(batch * layer.kv_heads * (layer.head_dim + layer.value_dim) for layer in geometry.layers)
    chunk = max(1, CHUNK_NBYTES // (token_nbytes * itemsize), -(-stops[-1] // MOST_CHUNKS))
    ends = []
    begin = 0
    for stop in stops:
        ends += [*range(begin + chunk, stop, chunk), stop]
        begin = stop
    return ends


@torch.inference_mode()
def fill(
    cache: QuantizedCache,
    batch: int,
    context: int,
    stops: Sequence[int] = (),
    advance: Callable[[int, int], None] = lambda done, of: None,
) -> Iterator[Filled]:
    """Append `context` tokens to each of `batch` rows; yields at every chunk's end. The reader may stop at any.

    `stops` are further lengths at which a chunk must end. `advance(done, of)` counts appended layers.
    """
    geometry = cache.geometry
    ends = chunk_ends(geometry, cache.kv_format, batch, sorted({*stops, context - 1, context} - {0}))
    steps = len(ends) * geometry.num_layers
    longest = max(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    pool = _Pool(geometry, batch, longest, getattr(torch, cache.kv_format.exact_dtype))
    done = begin = 0
    for end in ends:
        last = end == context
        transient = 0
        for index in range(geometry.num_layers):
            keys, values = pool.keys(index, end - begin), pool.values(index, end - begin)
            if last:
                layer = geometry.layers[index]
                query = torch.zeros(batch, geometry.query_heads, 1, layer.head_dim, dtype=keys.dtype)
                module = torch.nn.Module()
                with watch_memory() as watch:
                    packed_attention(module, query, *cache.update(keys, values, index), None)
                transient = max(transient, watch.peak.transient_nbytes)
            else:
                cache.update(keys, values, index)
            done += 1
            advance(done, steps)
        begin = end
        yield Filled(end, cache.ledger(), transient if last else None)


class _Pool:
    """One buffer of numbers for all layers, viewed in the shape that each wants."""

    def __init__(self, geometry: CacheGeometry, batch: int, tokens: int, dtype: torch.dtype) -> None:
        self._geometry = geometry
        self._batch = batch
        widest = max(layer.kv_heads * max(layer.head_dim, layer.value_dim) for layer in geometry.layers)
        self._numbers = _gaussian(1, 1, batch * tokens, widest, dtype).flatten()

    def keys(self, layer: int, tokens: int) -> Tensor:
        return self._view(layer, tokens, self._geometry.layers[layer].head_dim)

    def values(self, layer: int, tokens: int) -> Tensor:
        return self._view(layer, tokens, self._geometry.layers[layer].value_dim)

    def _view(self, layer: int, tokens: int, dim: int) -> Tensor:
        shape = (self._batch, self._geometry.layers[layer].kv_heads, tokens, dim)
        return self._numbers[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)


def _gaussian(batch: int, heads: int, tokens: int, dim: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randn(batch, heads, tokens, dim, generator=generator).to(dtype)
