"""What one layer's call needs beyond what it leaves behind, measured: prefill, flush and decode.

One layer of the given shape, filled with Gaussian numbers, then one call whose tensor memory is recorded to the byte
(`memory_peak`). A call is the append, attention over the pages, and the commit. Memory that exists
before the call (its keys, values and query) is not counted, nor is what the cache keeps afterwards.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple

import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import NAME, packed_attention
from kvassay.cache.attention_path import AttentionChoice
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import KVFormat
from kvassay.core.transient_peak import Phase, call_tokens
from kvassay.errors import CapacityError
from kvassay.measures.cache_fill import layer_calibration, synthetic_config
from kvassay.measures.memory_peak import MemoryPeak, watch_memory
from kvassay.measures.process_memory import reset_high_water, resident_memory

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
    attention: AttentionChoice = "tiled"
    """Which path reads the pages: predictions are of the tiled one."""


@torch.inference_mode()
def layer_transient(call: LayerCall, phase: Phase) -> MemoryPeak | None:
    """The call's tensor memory; None where the format has no such call (`call_tokens`)."""
    run = _prepared(call, phase)
    if run is None:
        return None
    gc.collect()
    with watch_memory() as watch:
        run()
    return watch.peak


@torch.inference_mode()
def resident_transient(call: LayerCall, phase: Phase) -> int | None:
    """Growth of resident memory during the call over that after it, in bytes; None where there is no such call.

    Meant for a fresh process: memory that was freed before and not given back to the system hides what the call takes.
    Raises CapacityError where the kernel tells no resident memory, and where it cannot begin a new high-water mark.
    """
    run = _prepared(call, phase)
    if run is None:
        return None
    gc.collect()
    if not reset_high_water():
        raise CapacityError("the kernel does not let a process reset its high-water mark; expected Linux's clear_refs")
    run()
    after = resident_memory()
    return after.high_water_nbytes - after.now_nbytes


def _prepared(call: LayerCall, phase: Phase) -> Callable[[], None] | None:
    """A filled layer's next call. Calls like it have run once, so that nothing of it is made for the first time."""
    tokens = call_tokens(call.kv_format, 0, call.layer, phase, call.tokens)
    if tokens is None:
        return None
    warm = empty_layer(call._replace(batch=1))
    for attends in (False, True):
        _call(warm, call._replace(batch=1), 1, attends=attends)()
    cache = empty_layer(call)
    if phase is Phase.PREFILL:
        return _call(cache, call, tokens, attends=False)
    for begin in range(0, tokens - 1, _FILL_TOKENS):
        _call(cache, call, min(_FILL_TOKENS, tokens - 1 - begin), attends=False)()
    return _call(cache, call, 1, attends=True)


def _call(cache: QuantizedCache, call: LayerCall, tokens: int, *, attends: bool) -> Callable[[], None]:
    """`attends=False` for a first call, whose attention reads what the model made, and for filling."""
    shape = (call.batch, call.layer.kv_heads, tokens)
    keys = torch.randn(*shape, call.layer.head_dim).to(call.dtype)
    values = torch.randn(*shape, call.layer.value_dim).to(call.dtype)
    query = torch.randn(call.batch, call.query_heads, tokens, call.layer.head_dim).to(call.dtype)
    module = torch.nn.Module()

    def run() -> None:
        seen = cache.update(keys, values, 0)
        if attends:
            packed_attention(module, query, *seen, None)
        del seen
        cache.quantized_layers[0].settle()

    return run


def empty_layer(call: LayerCall) -> QuantizedCache:
    """A cache of this one layer, read as the call says, with calibrated scales where the format needs them."""
    geometry = CacheGeometry(model_type="synthetic", query_heads=call.query_heads, layers=(call.layer,))
    config = synthetic_config(geometry)
    config._attn_implementation = NAME
    calibration = {0: layer_calibration(call.kv_format, 0, call.layer)}
    return QuantizedCache(config, call.kv_format, calibration=calibration, on_clip="count", attention=call.attention)
