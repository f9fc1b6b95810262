"""Microseconds that an append of one token takes, a layer: the whole update, and the compiled module's call alone.

    python -m benchmarks.append [--tokens 800] [--held 1024]

The update is timed with and without the short way (`cache.step_append`), so that the ratio is one of one run. Means
count the steps at which a page ends, which take the long way.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.step_append import LayerStep

SHAPES = ((3, 64), (8, 128))
FORMATS = ("int4-g64", "int8-token-head", "kivi-4,recent=32", "bf16")


def new_cache(text: str, heads: int, dim: int) -> QuantizedCache:
    """Of one layer; no model is made of its config."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=4 * heads * dim,
        num_hidden_layers=1,
        num_attention_heads=4 * heads,
        num_key_value_heads=heads,
        head_dim=dim,
    )
    config._attn_implementation = "kvassay"
    return QuantizedCache(config, text)


def updates(text: str, heads: int, dim: int, held: int, tokens: int, short: bool) -> list[float]:
    """Seconds of each update."""
    of = LayerStep.of
    if not short:
        LayerStep.of = classmethod(lambda cls, cohorts: None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        cache = new_cache(text, heads, dim)
        cache.update(torch.randn(1, heads, held, dim), torch.randn(1, heads, held, dim), 0)
        given = torch.randn(tokens, 2, 1, heads, 1, dim)
        seconds: list[float] = []
        for keys, values in given:
            keys, values = keys.clone(), values.clone()  # written just now, as by a projection
            began = time.perf_counter()
            seen = cache.update(keys, values, 0)
            seconds.append(time.perf_counter() - began)
            del seen
        return seconds
    finally:
        LayerStep.of = of


def calls(text: str, heads: int, dim: int, held: int, tokens: int) -> list[float]:
    """Seconds of the compiled module's call within the short way."""
    cache = new_cache(text, heads, dim)
    cache.update(torch.randn(1, heads, held, dim), torch.randn(1, heads, held, dim), 0)
    seconds: list[float] = []

    class Timed:
        def __init__(self, native) -> None:
            self._native = native

        def append(self, *given) -> bool:
            began = time.perf_counter()
            written = self._native.append(*given)
            seconds.append(time.perf_counter() - began)
            return written

    layer = cache.layers[0]
    for keys, values in torch.randn(tokens, 2, 1, heads, 1, dim):
        step = layer._step
        if step is not None and not isinstance(step._native, Timed):
            step._native = Timed(step._native)
        cache.update(keys.clone(), values.clone(), 0)  # written just now, as by a projection
    return seconds


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=800)
    parser.add_argument("--held", type=int, default=1024)
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    print("| KV heads x dim | format | update, median (mean) us | the long way | module's call |")
    print("|---|---|---|---|---|")
    for heads, dim in SHAPES:
        for text in FORMATS:
            short, long = (updates(text, heads, dim, asked.held, asked.tokens, way) for way in (True, False))
            alone = calls(text, heads, dim, asked.held, asked.tokens)
            figures = [
                f"{1e6 * statistics.median(each):.1f} ({1e6 * statistics.fmean(each):.1f})" for each in (short, long)
            ]
            print(f"| {heads} x {dim} | {text} | {figures[0]} | {figures[1]} | {1e6 * statistics.median(alone):.1f} |")


if __name__ == "__main__":
    main()
