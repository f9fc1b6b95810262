"""What is timed: one decode step of attention of one layer, batch 1."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.fused_attention import fused_attention
from kvassay.cache.huge_pages import huge_page_memory
from kvassay.cache.packed_view import SeenTokens
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.tiled_attention import Scoring, tiled_attention


class Shape(NamedTuple):
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    batch: int = 1


class Arm(NamedTuple):
    step: Callable[[], Tensor]
    read_nbytes: int
    """What a step must read at least."""


def states(shape: Shape, seed: int, heads: int, tokens: int) -> Tensor:
    return torch.randn(shape.batch, heads, tokens, shape.head_dim, generator=torch.Generator().manual_seed(seed))


def packed(shape: Shape, name: str, attention: str) -> Arm:
    """Our attention over a layer of a cache that holds the context."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=shape.query_heads * shape.head_dim,
        num_hidden_layers=1,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    config._attn_implementation = "kvassay"
    cache = QuantizedCache(config, name, on_clip="count")
    for begin in range(0, shape.context - 1, 8192):
        tokens = min(8192, shape.context - 1 - begin)
        cache.update(states(shape, begin, shape.kv_heads, tokens), states(shape, begin + 1, shape.kv_heads, tokens), 0)
    cache.update(states(shape, 1, shape.kv_heads, 1), states(shape, 2, shape.kv_heads, 1), 0)
    layer = cache.layers[0]
    assert isinstance(layer, QuantizedLayer)
    query = states(shape, 3, shape.query_heads, 1)
    scoring = Scoring(shape.head_dim**-0.5)
    ratio = shape.query_heads // shape.kv_heads

    def fused() -> Tensor:
        return fused_attention(query, SeenTokens(layer, layer.cohorts, 0, layer.columns, None), None, scoring)

    def tiled() -> Tensor:
        return tiled_attention(query, SeenTokens(layer, layer.cohorts, 0, layer.columns, None), None, scoring)

    def decoded() -> Tensor:
        seen = SeenTokens(layer, layer.cohorts, 0, layer.columns, None)
        grouped = query.view(shape.batch, shape.kv_heads, ratio, shape.head_dim)
        return scaled_dot_product_attention(
            grouped, seen.decoded("keys", torch.float32), seen.decoded("values", torch.float32)
        )

    stored = sum(pool.nbytes for store in layer.stores for pool in store.pools)
    return Arm({"fused": fused, "tiled": tiled, "decoded": decoded}[attention], stored)


def on_large_pages(tensor: Tensor) -> Tensor:
    """The same numbers where a large slab of a cache would lie."""
    memory = huge_page_memory(tensor.numel() * tensor.element_size())
    return tensor if memory is None else memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def plain(shape: Shape, dtype: torch.dtype, how: str, large_pages: bool = False) -> Arm:
    """torch's attention over plain tensors."""
    keys, values = (states(shape, seed, shape.kv_heads, shape.context).to(dtype) for seed in (1, 2))
    if large_pages:
        keys, values = on_large_pages(keys), on_large_pages(values)
    query = states(shape, 3, shape.query_heads, 1).to(dtype)
    ratio = shape.query_heads // shape.kv_heads

    def view() -> Tensor:
        grouped = query.view(shape.batch, shape.kv_heads, ratio, shape.head_dim)
        return scaled_dot_product_attention(grouped, keys, values)

    def enable_gqa() -> Tensor:
        return scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    def repeat_kv() -> Tensor:
        all_keys, all_values = keys.repeat_interleave(ratio, dim=1), values.repeat_interleave(ratio, dim=1)
        return scaled_dot_product_attention(query, all_keys, all_values)

    nbytes = 2 * keys.numel() * keys.element_size()
    return Arm({"view": view, "enable_gqa": enable_gqa, "repeat_kv": repeat_kv}[how], nbytes)


ARMS: dict[str, Callable[[Shape], Arm]] = {
    "kvassay int4-g64": lambda shape: packed(shape, "int4-g64", "fused"),
    "kvassay int4-g32": lambda shape: packed(shape, "int4-g32", "fused"),
    "kvassay int8-token-head": lambda shape: packed(shape, "int8-token-head", "fused"),
    "kvassay fp8-e4m3-token-head": lambda shape: packed(shape, "fp8-e4m3-token-head", "fused"),
    "kvassay kivi-4": lambda shape: packed(shape, "kivi-4", "fused"),
    "kvassay kivi-2": lambda shape: packed(shape, "kivi-2", "fused"),
    "kvassay nf4-g64": lambda shape: packed(shape, "nf4-g64", "fused"),
    "kvassay turboquant-mse-4": lambda shape: packed(shape, "turboquant-mse-4", "fused"),
    "kvassay bf16": lambda shape: packed(shape, "bf16", "fused"),
    "kvassay f32": lambda shape: packed(shape, "f32", "fused"),
    "torch bf16, q viewed by KV head": lambda shape: plain(shape, torch.bfloat16, "view"),
    "torch bf16, q viewed, large pages": lambda shape: plain(shape, torch.bfloat16, "view", large_pages=True),
    "torch f32, q viewed by KV head": lambda shape: plain(shape, torch.float32, "view"),
    "torch bf16, enable_gqa": lambda shape: plain(shape, torch.bfloat16, "enable_gqa"),
    "torch bf16, repeat_kv": lambda shape: plain(shape, torch.bfloat16, "repeat_kv"),
    "int4-g64 decoded, then torch f32": lambda shape: packed(shape, "int4-g64", "decoded"),
    "int4-g64 by tiles in torch": lambda shape: packed(shape, "int4-g64", "tiled"),
}


class Reader:
    """Reads a block at the speed of memory, by some threads; compiled for this machine."""

    def __init__(self, nbytes: int, threads: int) -> None:
        source = Path(__file__).with_name("read_bandwidth.cpp")
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name) / "read_bandwidth.so"
        command = ["g++", "-O3", "-march=native", "-funroll-loops", "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        self._function = ctypes.CDLL(str(library)).read_all
        self._function.argtypes, self._function.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_uint64
        memory = huge_page_memory(nbytes)
        self._block = torch.zeros(nbytes, dtype=torch.uint8) if memory is None else memory.zero_()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        part = self._block.numel() // self._threads
        starts = [self._block.data_ptr() + index * part for index in range(self._threads)]
        if self._threads == 1:
            self._function(starts[0], part // 8)
        else:
            list(self._pool.map(lambda start: self._function(start, part // 8), starts))
