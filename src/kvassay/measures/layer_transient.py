"""What one layer's call needs beyond what it leaves behind, measured: prefill, flush and decode.

One layer of the given shape, filled with Gaussian numbers, then one call whose tensor memory is recorded to the byte
(`memory_peak`). A call is the append, attention over the pages by the tiled path, and the commit. Memory that exists
before the call (its keys, values and query) is not counted, nor is what the cache keeps afterwards.
"""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import NAME, packed_attention
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.transient_peak import Phase, call_tokens
from kvassay.measures.cache_fill import layer_calibration, synthetic_config
from kvassay.measures.memory_peak import MemoryPeak, watch_memory

_FILL_TOKENS = 2048
"""Tokens of one append while the cache is filled, so that filling takes little memory."""


class LayerCall(NamedTuple):
    """A layer and the lengths of its call."""

    kv_format: KVFormat
    layer: LayerGeometry
    query_heads: int
    batch: int
    tokens: int
    """Of the prefill, which is one call; or held in each row after the step."""
    dtype: torch.dtype = torch.float32
    """Of keys, values and queries."""


@torch.inference_mode()
def layer_transient(call: LayerCall, phase: Phase) -> MemoryPeak | None:
    """The call's tensor memory; None where the format has no such call (`flush_tokens`)."""
    tokens = call_tokens(call.kv_format, 0, call.layer, phase, call.tokens)
    if tokens is None:
        return None
    cache = empty_layer(call)
    if phase is Phase.PREFILL:
        return watched_call(cache, call, tokens, attends=False)
    for begin in range(0, tokens - 2, _FILL_TOKENS):
        fill_layer(cache, call, min(_FILL_TOKENS, tokens - 2 - begin))
    watched_call(cache, call, 1)  # arrays that a process makes once
    return watched_call(cache, call, 1)


def fill_layer(cache: QuantizedCache, call: LayerCall, tokens: int) -> None:
    cache.update(*_numbers(call, tokens), 0)
    cache.quantized_layers[0].settle()


def watched_call(cache: QuantizedCache, call: LayerCall, tokens: int, *, attends: bool = True) -> MemoryPeak:
    """One call of `tokens` tokens. `attends=False` for a first call, whose attention reads what the model made."""
    keys, values = _numbers(call, tokens)
    query = torch.randn(call.batch, call.query_heads, tokens, call.layer.head_dim).to(call.dtype)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, call.query_heads // call.layer.kv_heads
    gc.collect()
    with watch_memory() as watch:
        seen = cache.update(keys, values, 0)
        if attends:
            packed_attention(module, query, *seen, None, scaling=0.1)
        del seen
        cache.quantized_layers[0].settle()
    return watch.peak


def empty_layer(call: LayerCall) -> QuantizedCache:
    """A cache of this one layer, read by tiles, with calibrated scales where the format needs them."""
    geometry = CacheGeometry(model_type="synthetic", query_heads=call.query_heads, layers=(call.layer,))
    config = synthetic_config(geometry)
    config._attn_implementation = NAME
    calibration = {0: layer_calibration(call.kv_format, 0, call.layer)}
    return QuantizedCache(config, call.kv_format, calibration=calibration, on_clip="count", attention="tiled")


def _numbers(call: LayerCall, tokens: int) -> tuple[Tensor, Tensor]:
    shape = (call.batch, call.layer.kv_heads, tokens)
    return (
        torch.randn(*shape, call.layer.head_dim).to(call.dtype),
        torch.randn(*shape, call.layer.value_dim).to(call.dtype),
    )
