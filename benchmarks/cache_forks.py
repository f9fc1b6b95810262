"""What forks of one prefix cost in memory: right after the fork, and after each of them went on.

    python -m benchmarks.cache_forks [--forks 1000] [--tokens 4000] [--layers 2] [--json]

`cache` forks a cache at that length: the forks share every page, partly filled ones too, and copy those when they
write to them (column "copies"). `lookup` forks what a PrefixStore gives for that prompt, which ends on a page bound:
nothing is copied. Counted are pages and block tables, each once, and beside them what the process grew by: a fork's
Python objects are no cache bytes, and they are memory. Each case runs in a process of its own. The input is Gaussian;
bytes do not depend on it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import LlamaConfig

from kvassay.cache import PrefixIdentity, PrefixStore, QuantizedCache
from kvassay.cache.paged_rows import PagedRows

HEADS, DIM = 8, 128
FORMATS = ("kivi-4", "int8-token-head")
HOW = ("cache", "lookup")
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
    copies_nbytes: int
    """Those of them that are copies of partly filled pages of the one."""
    tables_nbytes: int
    own_nbytes: int
    """Pages of as many caches that hold the appended tokens alone."""
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


def parts(cache: QuantizedCache) -> Iterator[PagedRows]:
    for layer in cache.quantized_layers:
        for store in layer.stores:
            held = store.parts
            for part in () if held is None else (*held.coded.all, held.tail, held.sinks):
                if part.table.size:
                    yield part


def pages_nbytes(caches: Iterable[QuantizedCache]) -> int:
    """Pages that block tables name, each once."""
    held: dict[int, tuple[int, set[int]]] = {}
    for cache in caches:
        for part in parts(cache):
            held.setdefault(id(part.pool), (part.pool.layout.nbytes, set()))[1].update(part.table.ravel().tolist())
    return sum(nbytes * len(pages) for nbytes, pages in held.values())


def tables_nbytes(caches: Iterable[QuantizedCache]) -> int:
    """Block tables, each once: forks share one until they write."""
    return sum({id(part.table.base): part.table_nbytes for cache in caches for part in parts(cache)}.values())


def copied_nbytes(one: QuantizedCache, forks: Sequence[QuantizedCache]) -> int:
    """Pages of forks that stand in the place of a partly filled page of the one."""
    found = 0
    for fork in forks:
        for mine, theirs in zip(parts(one), parts(fork), strict=False):
            last = mine.table.shape[1] - 1 - (theirs.start - mine.start) // mine.pool.layout.tokens
            partly = (mine.end - mine.start) % mine.pool.layout.tokens
            if mine.pool is theirs.pool and partly and last >= 0 and mine.table[0, -1] != theirs.table[0, last]:
                found += mine.pool.layout.nbytes
    return found


def resident_nbytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@torch.inference_mode()
def measure(name: str, how: str, layers: int, tokens: int, forks: int) -> list[Row]:
    torch.set_num_threads(1)
    one = filled(layers, name, tokens)
    if how == "lookup":
        store = PrefixStore()
        identity = PrefixIdentity.of(
            one, model="m", revision="r", tokenizer="t", rope="default", compute_dtype="float32"
        )
        store.put(one, range(tokens), identity)
        one = store.lookup(range(tokens), identity, QuantizedCache(config(layers), name)).cache
    one_nbytes = pages_nbytes([one]) + tables_nbytes([one])
    before = resident_nbytes()
    found = [one.fork() for _ in range(forks)]
    rows: list[Row] = []
    held = 0
    for appended in APPENDED:
        for seed, fork in enumerate(found):
            if appended > held:
                append(fork, appended - held, seed)
        held = appended
        own = pages_nbytes([filled(layers, name, appended)]) if appended else 0
        pages = pages_nbytes([one, *found]) - pages_nbytes([one])
        tables = tables_nbytes([one, *found]) - tables_nbytes([one])
        copies = copied_nbytes(one, found)
        rows.append(
            Row(name, how, appended, one_nbytes, pages, copies, tables, forks * own, resident_nbytes() - before)
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [(name, how, options.layers, options.tokens, options.forks) for name in FORMATS for how in HOW]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as workers:
        rows = [row for case in cases for row in workers.apply(measure, case)]
    if options.json:
        print(json.dumps([{**row._asdict(), "ratio": row.ratio} for row in rows], indent=1))
        return
    shape = f"{options.layers} layers x {HEADS} heads x {DIM}"
    print(f"{options.forks} forks of {options.tokens} tokens, {shape}; MB = 10^6 bytes")
    print(
        "| format | of a | appended | one MB | pages MB | copies MB | tables MB | own tokens MB | ratio | process MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        nbytes = (row.one_nbytes, row.pages_nbytes, row.copies_nbytes, row.tables_nbytes, row.own_nbytes)
        cells = (f"`{row.kv_format}`", row.how, row.appended, *(f"{one / 1e6:.2f}" for one in nbytes))
        print("|", " | ".join(map(str, cells)), f"| {row.ratio:.3f} | {row.resident_nbytes / 1e6:.0f} |")


if __name__ == "__main__":
    main()
