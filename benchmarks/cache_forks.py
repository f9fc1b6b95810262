"""What forks of one prefix cost in memory: right after the fork, and after each of them went on.

    python -m benchmarks.cache_forks [--forks 1000] [--tokens 4000] [--layers 2] [--json]

`fork()` shares every page of a cache, the partly filled ones too, and copies those when a fork writes to them. A lookup
in a PrefixStore begins on a page bound, so nothing is copied. Counted are the real storages (slabs of pages, each once)
and block tables, and beside them what the process really grew by: Python's objects of a fork are no cache bytes, and
they are memory. The input is Gaussian; bytes do not depend on it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

import torch
from transformers import LlamaConfig

from kvassay.cache import PrefixIdentity, PrefixStore, QuantizedCache

HEADS, DIM = 8, 128
FORMATS = ("kivi-4", "int8-token-head")
APPENDED = (0, 1, 16, 64)


class Row(NamedTuple):
    """One line of the table; all figures are bytes."""

    kv_format: str
    how: str
    appended: int
    one_nbytes: int
    """Pages and tables of the cache that was forked."""
    pages_nbytes: int
    """Pages of all forks together, each once, without those of the one."""
    tables_nbytes: int
    own_nbytes: int
    """What the appended tokens take by themselves: those of their pages that hold nothing else, whole."""
    resident_nbytes: int
    """Growth of the process since before the forks."""

    @property
    def ratio(self) -> float:
        """All bytes over those of one and the forks' own tokens."""
        return (self.one_nbytes + self.pages_nbytes + self.tables_nbytes) / (self.one_nbytes + self.own_nbytes)


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=HEADS * DIM,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=DIM,
    )


def append(cache: QuantizedCache, tokens: int, seed: int) -> None:
    """Append without reading, which would decode the whole prefix for nobody."""
    generator = torch.Generator().manual_seed(seed)
    for layer in cache.quantized_layers:
        for store in layer.stores:
            store.append(torch.randn(1, HEADS, tokens, DIM, generator=generator))
        layer.columns += tokens


def filled(layers: int, name: str, tokens: int) -> QuantizedCache:
    cache = QuantizedCache(config(layers), name)
    for layer in range(layers):
        generator = torch.Generator().manual_seed(layer)
        cache.update(*(torch.randn(1, HEADS, tokens, DIM, generator=generator) for _ in range(2)), layer)
    return cache


def pages_nbytes(caches: Iterable[QuantizedCache]) -> int:
    """Pages that block tables name, each once."""
    held: dict[int, tuple[int, set[int]]] = {}
    for cache in caches:
        for layer in cache.quantized_layers:
            for store in layer.stores:
                for part in (*store.coded_pages, store.tail_pages, store.sink_pages):
                    if part is not None and part.table.size:
                        held.setdefault(id(part.pool), (part.pool.layout.nbytes, set()))[1].update(part.table.ravel())
    return sum(nbytes * len(pages) for nbytes, pages in held.values())


def tables_nbytes(caches: Iterable[QuantizedCache]) -> int:
    return sum(
        part.table_nbytes
        for cache in caches
        for layer in cache.quantized_layers
        for store in layer.stores
        for part in (*store.coded_pages, store.tail_pages, store.sink_pages)
        if part is not None
    )


def resident_nbytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(name: str, how: str, layers: int, tokens: int, forks: int) -> Iterable[Row]:
    cache = filled(layers, name, tokens)
    if how == "fork()":
        one = cache
    else:
        store = PrefixStore()
        identity = PrefixIdentity.of(
            cache, model="m", revision="r", tokenizer="t", rope="default", compute_dtype="float32"
        )
        store.put(cache, range(tokens), identity)
        one = store.lookup(range(tokens), identity, QuantizedCache(config(layers), name)).cache
        del cache
    one_nbytes = pages_nbytes([one]) + tables_nbytes([one])
    before = resident_nbytes()
    if how == "fork()":
        found = [one.fork() for _ in range(forks)]
    else:
        empty = QuantizedCache(config(layers), name)
        found = [store.lookup(range(tokens), identity, empty._empty()).cache for _ in range(forks)]
    shared = pages_nbytes([one])
    held = 0
    for appended in APPENDED:
        for seed, fork in enumerate(found):
            if appended > held:
                append(fork, appended - held, seed)
        held = appended
        own = QuantizedCache(config(layers), name)
        if appended:
            append(own, appended, 0)
        yield Row(
            name,
            how,
            appended,
            one_nbytes,
            pages_nbytes([one, *found]) - shared,
            tables_nbytes(found),
            forks * pages_nbytes([own]),
            resident_nbytes() - before,
        )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in FORMATS:
        for how in ("fork()", "lookup"):
            rows += measure(name, how, options.layers, options.tokens, options.forks)
    if options.json:
        print(json.dumps([{**row._asdict(), "ratio": row.ratio} for row in rows], indent=1))
        return
    shape = f"{options.layers} layers x {HEADS} heads x {DIM}"
    print(f"{options.forks} forks of {options.tokens} tokens, {shape}; MB = 10^6 bytes")
    print(
        "format           how      appended   one MB  all forks: pages MB  tables MB  own tokens MB   ratio  resident MB"
    )
    for row in rows:
        print(
            f"{row.kv_format:16} {row.how:8} {row.appended:8} {row.one_nbytes / 1e6:8.2f} {row.pages_nbytes / 1e6:20.2f} "
            f"{row.tables_nbytes / 1e6:10.2f} {row.own_nbytes / 1e6:14.2f} {row.ratio:7.3f} {row.resident_nbytes / 1e6:12.1f}"
        )


if __name__ == "__main__":
    main()
