"""Layers of a cache from a saved file. Nothing in it is believed before it is compared with what the format implies.

First the counts: which tokens each store can hold in which pages, and so the name, type and shape of every array. Then
the block tables: every page number in range, every page named, in order, and for one place of the sequence only. Then
the pages: hashes, zeros where nothing is held, no NaN and no infinity. Layers are made anew; the cache is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.coded_runs import CodedRuns
from kvassay.cache.layer_state import LayerState
from kvassay.cache.page_bytes import array_with_a_nonfinite_value, filled_blocks, page_chunks, written_bytes
from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.side_parts import SideParts, tail_pool
from kvassay.cache.side_state import (
    RunTokens,
    SideState,
    require_possible,
    restore_side,
    sinks_tokens,
    tail_tokens,
)
from kvassay.cache.side_store import SideStore
from kvassay.core.paging import PageLayout, layout_id
from kvassay.core.saved_header import Part, SavedLayer, SavedStore, pages_name, table_name
from kvassay.errors import CacheStateError, SavedCacheError
from kvassay.formats.container import StoredArray

_MAX_ENTRIES = (1 << 31) - 1
"""References of a page are counted in 32 bits."""


class ArraySource(Protocol):
    """Bytes of arrays that were declared; both check length and hash, and raise SavedCacheError."""

    def whole(self, name: str) -> bytes: ...

    def pieces(self, name: str, nbytes: Iterator[int]) -> Iterator[bytes]: ...


class _Table(NamedTuple):
    """A block table that the counts of a store imply."""

    name: str
    pool: int
    tokens: RunTokens
    rows: int
    columns: int


class _Store(NamedTuple):
    """A store to fill, and its tables in the order of the file."""

    store: SideStore
    saved: SavedStore
    tokens: int
    runs: list[_Table]
    tail: _Table
    sinks: _Table

    @property
    def tables(self) -> list[_Table]:
        return [*self.runs, self.tail, self.sinks]


class LayerPlan:
    """One layer of a file, its counts checked, its arrays not yet read."""

    def __init__(self, layer: QuantizedLayer, saved: SavedLayer, index: int) -> None:
        """Raises SavedCacheError where the counts of the header cannot be those of such a layer."""
        self._index, self._saved = index, saved
        self._layouts: list[PageLayout | None] = [None] * len(saved.pools)
        self.cohorts = [layer.empty_cohort(cohort.rows, cohort.padding) for cohort in saved.cohorts]
        self._stores: list[_Store] = []
        rows = sorted(row for cohort in saved.cohorts for row in cohort.rows)
        if rows != list(range(len(rows))) or any(list(c.rows) != sorted(c.rows) for c in saved.cohorts):
            raise self._wrong("its cohorts do not hold each row of the batch once, in rising order")
        if saved.columns and not rows:
            raise self._wrong(f"{saved.columns} tokens of no row")
        for number, (made, cohort) in enumerate(zip(self.cohorts, saved.cohorts, strict=True)):
            stores = list(made.stores)
            if len(stores) != len(cohort.stores):
                raise self._wrong(f"cohort {number} has {len(cohort.stores)} stores, the format has {len(stores)}")
            for place, (store, kept) in enumerate(zip(stores, cohort.stores, strict=True)):
                named = _named(index, number, place)
                self._stores.append(self._store(store, kept, place, made.tokens(saved.columns), len(made.rows), named))
        if None in self._layouts:
            raise self._wrong(f"no store has its pages in pool {self._layouts.index(None)}")

    @property
    def num_rows(self) -> int:
        return sum(len(cohort.rows) for cohort in self._saved.cohorts)

    @property
    def arrays(self) -> Iterator[StoredArray]:
        """Every array of the layer; one without elements is not stored."""
        for each in self._tables:
            yield StoredArray(each.name, "int32", (each.rows, each.columns))
        for number, pool in enumerate(self._saved.pools):
            if pool.pages:
                yield StoredArray(pages_name(self._index, number), "uint8", (pool.pages, self._layout(number).nbytes))

    def read(self, source: ArraySource, device: torch.device, left_padding: tuple[int, ...] | None) -> LayerState:
        """The layer with its pages, on `device`."""
        tables = {each.name: self._table(each, source) for each in self._tables}
        begins = self._check_numbers(tables)
        pools = [self._empty_pool(number, device) for number in range(len(self._saved.pools))]
        pages = [_allocated(pool, begin) for pool, begin in zip(pools, begins, strict=True)]
        for number, (pool, held) in enumerate(zip(pools, pages, strict=True)):
            self._read_pages(pool, held, pages_name(self._index, number), source)
        parts: list[list[PagedRows]] = [[] for _ in pools]

        def rows(each: _Table) -> PagedRows:
            table = pages[each.pool][tables.get(each.name, np.zeros((each.rows, 0), np.int32))]
            made = PagedRows.of_table(pools[each.pool], table, *each.tokens)
            parts[each.pool].append(made)
            return made

        for each in self._stores:
            restore_side(each.store, self._state(each, pools, rows))
        for number, pool in enumerate(pools):
            # Reading held one reference to each page; from here on only the block tables do.
            pool.release(pages[number])
            if len(pages[number]):
                _check_pages(pool, pages[number], parts[number], pages_name(self._index, number))
        return LayerState(
            self._saved.columns,
            getattr(torch, self._saved.dtype),
            self._saved.recording,
            left_padding,
            tuple(self.cohorts),
        )

    def _store(
        self, store: SideStore, saved: SavedStore, place: int, tokens: int, rows: int, named: Callable[[str], str]
    ) -> _Store:
        runs = [RunTokens(run.start, run.first, run.end) for run in saved.runs]
        try:
            require_possible(
                store.plan, store.coded_layout.tokens, tokens, saved.coded, saved.dropped, runs, saved.tail_first
            )
        except CacheStateError as error:
            raise self._wrong(f"store {place}: {error}") from error
        if (saved.pools is None) != (tokens == 0):
            raise self._wrong(f"store {place} holds {tokens} tokens and {'no' if tokens else 'some'} pages")
        coded, tail, sinks = (0, 0, 0)
        if saved.pools is not None:
            coded, tail, sinks = saved.pools.coded, saved.pools.tail, saved.pools.sinks
            self._claim(coded, place, "coded", store.coded_layout)
            self._claim(tail, place, "tail", store.tail_layout)
            self._claim(sinks, place, "sinks", store.sinks_layout)

        def table(part: str, pool: int, span: RunTokens, layout: PageLayout) -> _Table:
            return _Table(named(part), pool, span, rows, span.num_pages(layout))

        return _Store(
            store,
            saved,
            tokens,
            [table(f"run{number}", coded, run, store.coded_layout) for number, run in enumerate(runs)],
            table("tail", tail, tail_tokens(store.plan, tokens, saved.tail_first), store.tail_layout),
            table("sinks", sinks, sinks_tokens(store.plan, tokens), store.sinks_layout),
        )

    def _claim(self, number: int, place: int, part: Part, layout: PageLayout) -> None:
        """A store has its pages in pool `number`; raises SavedCacheError unless that pool's pages are of its kind."""
        if number >= len(self._saved.pools):
            raise self._wrong(f"store {place} has its pages in pool {number} of {len(self._saved.pools)}")
        pool = self._saved.pools[number]
        if (pool.store, pool.part) != (place, part):
            raise self._wrong(
                f"pool {number} is for the {pool.part} pages of store {pool.store}, and store {place} has its {part} "
                "pages there"
            )
        if pool.layout != layout_id(layout):
            raise self._wrong(
                f"pages of pool {number} have layout {pool.layout[:12]}…, the format's are {layout_id(layout)[:12]}…: "
                "equal sizes do not make them readable"
            )
        self._layouts[number] = layout

    @property
    def _tables(self) -> Iterator[_Table]:
        """Tables that are stored, in the order in which they number the pages."""
        for each in self._stores:
            yield from (table for table in each.tables if table.columns)

    def _layout(self, number: int) -> PageLayout:
        layout = self._layouts[number]
        assert layout is not None, "checked when the plan was made"
        return layout

    def _table(self, each: _Table, source: ArraySource) -> PageIds:
        return np.frombuffer(source.whole(each.name), "<i4").astype(np.int32).reshape(each.rows, each.columns)

    def _check_numbers(self, tables: dict[str, PageIds]) -> list[NDArray[np.int64]]:
        """Raise SavedCacheError unless tables number the pages of each pool as a writer does.

        Returns the first token of each page of each pool.
        """
        named = [0] * len(self._saved.pools)
        entries = [0] * len(self._saved.pools)
        begins: list[NDArray[np.int64]] = [np.full(pool.pages, -1, np.int64) for pool in self._saved.pools]
        for each in self._tables:
            flat, pages = tables[each.name].ravel().astype(np.int64), self._saved.pools[each.pool].pages
            if bool((flat < 0).any()) or bool((flat >= pages).any()):
                wrong = int(flat[(flat < 0) | (flat >= pages)][0])
                raise SavedCacheError(f"array {each.name} names page {wrong}; pool {each.pool} has {pages} pages")
            highest = np.maximum.accumulate(np.concatenate(([named[each.pool] - 1], flat)))
            if bool((flat > highest[:-1] + 1).any()):
                raise SavedCacheError(f"array {each.name} does not name pages in their order, as every writer does")
            named[each.pool] = int(highest[-1]) + 1
            entries[each.pool] += flat.size
            # A page stands at one place of the sequence, whoever shares it.
            begin = each.tokens.start + np.arange(each.columns) * self._layout(each.pool).tokens
            begin = np.broadcast_to(begin, (each.rows, each.columns)).ravel()
            known = begins[each.pool][flat]
            begins[each.pool][flat] = begin
            if bool(((known >= 0) & (known != begin)).any()) or bool((begins[each.pool][flat] != begin).any()):
                raise SavedCacheError(f"array {each.name} names one page for two places of a sequence")
        for number, pool in enumerate(self._saved.pools):
            if named[number] != pool.pages:
                raise self._wrong(f"pool {number} has {pool.pages} pages, of which tables name {named[number]}")
            if entries[number] > _MAX_ENTRIES:
                raise self._wrong(f"pool {number} is named {entries[number]} times; at most {_MAX_ENTRIES} are counted")
        return begins

    def _empty_pool(self, number: int, device: torch.device) -> PagePool:
        layout = self._layout(number)
        return tail_pool(layout, device) if self._saved.pools[number].part == "tail" else PagePool(layout, device)

    def _read_pages(self, pool: PagePool, pages: PageIds, name: str, source: ArraySource) -> None:
        if not len(pages):
            return
        width = pool.layout.nbytes
        chunks = list(page_chunks(pool, pages))
        sizes = ((chunk.stop - chunk.start) * width for chunk in chunks)
        for chunk, piece in zip(chunks, source.pieces(name, sizes), strict=True):
            raw = torch.frombuffer(bytearray(piece), dtype=torch.uint8).reshape(-1, width)
            pool.put_raw(pages[chunk], raw.to(pool.device))

    def _state(self, each: _Store, pools: list[PagePool], rows: Callable[[_Table], PagedRows]) -> SideState:
        saved, parts = each.saved, None
        if saved.pools is not None:
            coded = CodedRuns(pools[saved.pools.coded], each.tail.rows, [rows(run) for run in each.runs])
            parts = SideParts(coded, rows(each.tail), rows(each.sinks))
        return SideState(
            each.tokens,
            saved.coded,
            saved.dropped,
            saved.recording,
            saved.clipped_values,
            saved.encoded_values,
            parts,
        )

    def _wrong(self, what: str) -> SavedCacheError:
        return SavedCacheError(f"layer {self._index} of the file: {what}; no cache has written it so")


def _named(layer: int, cohort: int, place: int) -> Callable[[str], str]:
    return lambda part: table_name(layer, cohort, place, part)


def _allocated(pool: PagePool, begins: NDArray[np.int64]) -> PageIds:
    """Pages of an empty pool for those of a file, whose first tokens are `begins`; columns of a tail by themselves."""
    if not pool.by_column:
        return pool.allocate(len(begins))
    pages = np.zeros(len(begins), np.int32)
    _, counts = np.unique(begins, return_counts=True)
    if len(counts):
        pages[np.argsort(begins, kind="stable")] = np.concatenate([pool.allocate(int(count)) for count in counts])
    return pages


def _check_pages(pool: PagePool, pages: PageIds, parts: list[PagedRows], name: str) -> None:
    """Raise SavedCacheError where pages hold more than tokens, or floats that no cache stores."""
    filled = filled_blocks(pool, pages, parts)
    for chunk, clean in zip(page_chunks(pool, pages), written_bytes(pool, pages, filled), strict=True):
        raw: Tensor = pool.raw(pages[chunk])
        if not torch.equal(raw, clean):
            raise SavedCacheError(f"array {name} has bytes where its pages hold no token; such places are zero")
    if array := array_with_a_nonfinite_value(pool, pages, filled):
        raise SavedCacheError(f"array {name} holds NaN or infinity in {array}; every stored float is finite")
