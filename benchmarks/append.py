"""What an append takes: one token of a decode step, and a chunk of a prompt.

    python -m benchmarks.append [--tokens 800] [--held 1024] [--dtype float32] [--instruction-set avx2]

One token: microseconds a layer, medians (means), of the whole update, with and without the short way
(`cache.step_append`), and of the compiled module's call alone. Layers take turns, and the second one is timed, since a
cache asks for the model's attention at the first. Means count the steps at which a page ends, which take the long way.

A chunk: microseconds a layer for keys and values, medians (and the range) of the compiled calls alone, from values to
codes in their pages, and of the whole update, beside a copy of the chunk's input into memory that was written before.

Keys and values are written just before they are appended, as by a projection.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.page_pool import PagePool
from kvassay.cache.step_append import LayerStep
from kvassay.core.format_names import parse_format
from kvassay.core.paging import page_layout
from kvassay.core.spec import QuantSpec
from kvassay.kernels.encode import encode
from kvassay.kernels.native import INSTRUCTION_SET_VARIABLE, instruction_set

SHAPES = ((3, 64), (8, 128))
FORMATS = ("int4-g64", "int8-token-head", "kivi-4,recent=32", "nf4-g64", "fp8-e4m3-token-head", "bf16")
ROTATED = "kv=int4:group64/had/seed=1"
CHUNKS = (*FORMATS, "kivi-2", ROTATED)
LAYERS = 3
TIMED_LAYER = 1


def new_cache(text: str, heads: int, dim: int) -> QuantizedCache:
    """Of a few layers; no model is made of its config."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=4 * heads * dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=4 * heads,
        num_key_value_heads=heads,
        head_dim=dim,
    )
    config._attn_implementation = "kvassay"
    return QuantizedCache(config, text)


def appended(cache: QuantizedCache, states: Tensor, index: int) -> float:
    """Seconds of one update; `states` `[2, 1, heads, tokens, dim]` are keys and values."""
    keys, values = states.clone()
    began = time.perf_counter()
    seen = cache.update(keys, values, index)
    del seen  # what a call of several tokens appends is written then
    return time.perf_counter() - began


def filled(text: str, heads: int, dim: int, held: int, dtype: torch.dtype) -> QuantizedCache:
    cache = new_cache(text, heads, dim)
    for index in range(LAYERS):
        appended(cache, torch.randn(2, 1, heads, held, dim).to(dtype), index)
    return cache


def updates(
    text: str, heads: int, dim: int, held: int, count: int, dtype: torch.dtype, short: bool = True, tokens: int = 1
) -> list[float]:
    """Seconds of each update of one layer, all layers in turn."""
    of = LayerStep.of
    if not short:
        LayerStep.of = classmethod(lambda cls, cohorts: None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        cache = filled(text, heads, dim, held, dtype)
        given = torch.randn(4, 2, 1, heads, tokens, dim).to(dtype)
        turns = [[appended(cache, given[turn % 4], index) for index in range(LAYERS)] for turn in range(count)]
        return [turn[TIMED_LAYER] for turn in turns]
    finally:
        LayerStep.of = of


class Timed:
    """A compiled step that notes how long its calls take."""

    def __init__(self, native, seconds: list[float]) -> None:
        self._native = native
        self._seconds = seconds

    def append(self, *given) -> bool:
        began = time.perf_counter()
        written = self._native.append(*given)
        self._seconds.append(time.perf_counter() - began)
        return written


def calls(text: str, heads: int, dim: int, held: int, count: int, dtype: torch.dtype) -> list[float]:
    """Seconds of the compiled module's call within the short way."""
    cache, seconds = filled(text, heads, dim, held, dtype), []
    layer = cache.quantized_layers[TIMED_LAYER]
    given = torch.randn(4, 2, 1, heads, 1, dim).to(dtype)
    for turn in range(count):
        for index in range(LAYERS):
            step = layer._step
            if step is not None and not isinstance(step._native, Timed):
                step._native = Timed(step._native, seconds)
            appended(cache, given[turn % 4], index)
    return seconds


def stored(spec: QuantSpec, side: str, values: Tensor, kept: torch.dtype) -> Callable[[], float]:
    """What gives the seconds from values to codes in their pages, which are taken and cleared before."""
    heads, tokens, dim = values.shape[1:]
    layout = page_layout(spec, heads, dim, side)  # pyright: ignore[reportArgumentType]
    pool = PagePool(layout)
    pages = pool.allocate(-(-tokens // layout.tokens))[None]

    def timed() -> float:
        given = values.clone()
        began = time.perf_counter()
        encoded = encode(spec, given, kept)
        assert encoded is not None, "the compiled module serves the formats of this benchmark"
        for region in layout.regions:
            array = encoded.streams[region.stream.name]
            raw = array.view(torch.uint8).reshape(*array.shape[:3], region.block_nbytes)
            pool.write(region, pages, 0, raw)
        return time.perf_counter() - began

    return timed


def copy_seconds(values: Tensor) -> float:
    given, to = values.clone(), torch.empty_like(values)
    to.copy_(given)
    began = time.perf_counter()
    to.copy_(given)
    return time.perf_counter() - began


def print_tokens(asked: argparse.Namespace, dtype: torch.dtype) -> None:
    print("| KV heads x dim | format | update, median (mean) us | the long way | module's call |")
    print("|---|---|---|---|---|")
    for heads, dim in SHAPES:
        for text in (*FORMATS, ROTATED):
            given = (text, heads, dim, asked.held, asked.tokens, dtype)
            short, long = updates(*given), updates(*given, short=False)
            figures = [
                f"{1e6 * statistics.median(each):.1f} ({1e6 * statistics.fmean(each):.1f})" for each in (short, long)
            ]
            alone = 1e6 * statistics.median(calls(*given))
            print(f"| {heads} x {dim} | {text} | {figures[0]} | {figures[1]} | {alone:.1f} |")


def print_chunks(asked: argparse.Namespace, dtype: torch.dtype) -> None:
    heads, dim = SHAPES[-1]
    print(f"\n| chunk of {asked.chunk} | compiled calls us (range) | times a copy | update us (range) | times a copy |")
    print("|---|---|---|---|---|")
    for text in CHUNKS:
        kv_format = parse_format(text)
        states = torch.randn(2, 1, heads, asked.chunk, dim).to(dtype)
        sides = [
            stored(spec, side, values, getattr(torch, kv_format.exact_dtype if not spec.is_exact else spec.code_dtype))
            for spec, side, values in zip(
                (kv_format.keys, kv_format.values), ("keys", "values"), states.unbind(), strict=True
            )
        ]
        turns = [(sum(side() for side in sides), copy_seconds(states)) for _ in range(asked.rounds)]
        whole = updates(text, heads, dim, asked.held, asked.rounds, dtype, tokens=asked.chunk)
        copy = statistics.median(seconds for _, seconds in turns)
        cells = [f"| {text} "]
        for seconds in ([alone for alone, _ in turns], whole):
            median = statistics.median(seconds)
            low, high = np.array((min(seconds), max(seconds))) * 1e6
            cells.append(f"| {1e6 * median:.0f} ({low:.0f} to {high:.0f}) | {median / copy:.1f} ")
        print("".join(cells) + "|")


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--held", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--instruction-set", default="")
    asked = parser.parse_args(given)
    if asked.instruction_set:
        os.environ[INSTRUCTION_SET_VARIABLE] = asked.instruction_set
    torch.set_num_threads(1)
    dtype = getattr(torch, asked.dtype)
    print(f"{asked.dtype} by {instruction_set()}, median of {asked.tokens} tokens and of {asked.rounds} chunks\n")
    print_tokens(asked, dtype)
    print_chunks(asked, dtype)


if __name__ == "__main__":
    main()
