"""Pages of a block: taken out of a cache, and given to an empty one.

A shelf is one identity's pools. A cache that began with shared pages goes on in the shelf's pools, so the blocks that
it adds can be stored without a copy; blocks of any other cache are copied once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvassay.cache.coded_runs import CodedRuns
from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.cache.side_parts import SideParts, tail_pool
from kvassay.cache.side_store import SideStore
from kvassay.core.prefix_blocks import BlockArray, BlockGrid, SideGrid
from kvassay.errors import CacheStateError


class HeldPages(NamedTuple):
    """Pages of one pool. Who keeps them holds one reference each."""

    pool: PagePool
    pages: PageIds

    @property
    def nbytes(self) -> int:
        return len(self.pages) * self.pool.layout.nbytes


BlockPages = dict[str, HeldPages]
"""Pages of one part of a block by array name (`BlockGrid.arrays`)."""


class Shelf:
    """Pools of one identity, and the snapshots kept for it."""

    def __init__(self, grid: BlockGrid, device: torch.device) -> None:
        self.grid = grid
        self.snapshots: dict[str, int] = {}
        """Tokens of each snapshot, by key."""
        self._pools: dict[str, PagePool] = {}
        for side in grid.sides:
            self._pools[side.name] = PagePool(side.layout, device)
            if side.sinks_layout is not None:
                self._pools[f"{side.name}.sinks"] = PagePool(side.sinks_layout, device)

    @property
    def pools(self) -> Iterator[PagePool]:
        yield from self._pools.values()

    def pool(self, array: str) -> PagePool:
        return self._pools[array]

    def reserve(self, arrays: Iterable[BlockArray]) -> None:
        """Take memory for these arrays at once, so that they lie in few slabs."""
        counts: Counter[str] = Counter()
        for array in arrays:
            counts[array.name] += array.pages
        for name, count in counts.items():
            self._pools[name].reserve(count)

    def keep(self, raw: Mapping[str, Tensor]) -> BlockPages:
        """New pages with these bytes; on an error none is left behind."""
        kept: BlockPages = {}
        try:
            for name, pages in raw.items():
                pool = self._pools[name]
                ids = pool.allocate(len(pages))
                kept[name] = HeldPages(pool, ids)
                pool.put_raw(ids, pages.to(pool.device))
        except BaseException:
            release(kept)
            raise
        return kept


def release(pages: BlockPages) -> None:
    for held in pages.values():
        held.pool.release(held.pages)


class RowPages:
    """The coded pages of one row of a cache, as blocks."""

    def __init__(self, cache: QuantizedCache, row: int, grid: BlockGrid) -> None:
        self._grid = grid
        self._stores: dict[str, tuple[SideStore, int]] = {}
        if not 0 <= row < max(0, cache.batch_size):
            raise CacheStateError(f"row {row} was asked for; the cache has {max(0, cache.batch_size)} rows, from 0 on")
        self.tokens = cache.get_seq_length() - cache.left_padding[row]
        for side in grid.sides:
            cohort = next(one for one in cache.quantized_layers[side.layer].cohorts if row in one.rows)
            store: SideStore = getattr(cohort.stored_heads[side.group], side.side)
            self._stores[side.name] = (store, cohort.rows.index(row))

    def has(self, part: str, block: int) -> bool:
        """True where the block's tokens are coded, and held, on every side of the part (never a mixed page, B55)."""
        return all(self._run(side, block) is not None for side in self._grid.sides_of(part))

    def shared(self, part: str, block: int, shelf: Shelf) -> BlockPages | None:
        """The pages themselves, with a reference each, where all of them lie in the shelf's pools already."""
        found: BlockPages = {}
        for side in self._grid.sides_of(part):
            run, span = self._held_run(side, block), side.span(block)
            if span.rest_tokens or run.pool is not shelf.pool(side.name):
                return None
            found[side.name] = HeldPages(run.pool, self._page_ids(side, run, span.first, span.end))
            if block == 0 and side.sinks_layout is not None:
                sinks, row = self._sinks(side)
                if sinks.pool is not shelf.pool(f"{side.name}.sinks"):
                    return None
                found[f"{side.name}.sinks"] = HeldPages(sinks.pool, sinks.table[row].copy())
        for held in found.values():
            held.pool.retain(held.pages)
        return found

    def raw(self, part: str, block: int) -> dict[str, Tensor]:
        """Bytes of the pages by array name, copies."""
        found: dict[str, Tensor] = {}
        for side in self._grid.sides_of(part):
            run, span = self._held_run(side, block), side.span(block)
            pages = run.pool.raw(self._page_ids(side, run, span.first, span.end))
            if span.rest_tokens:
                begin = span.end * side.layout.tokens
                rest = PagedRows(PagePool(side.layout, run.pool.device), 1)
                rest.append(run.select([self._stores[side.name][1]]).read(begin, begin + span.rest_tokens))
                pages = torch.cat((pages, rest.raw()[0]))
            found[side.name] = pages
            if block == 0 and side.sinks_layout is not None:
                sinks, row = self._sinks(side)
                found[f"{side.name}.sinks"] = sinks.pool.raw(sinks.table[row])
        return found

    def _run(self, side: SideGrid, block: int) -> PagedRows | None:
        """The run that holds all of a block, page by page."""
        begin, end, page = side.span(block).first * side.layout.tokens, side.coded(block + 1), side.layout.tokens
        for run in self._stores[side.name][0].coded_pages:
            if run.start % page == 0 and run.first <= begin and end <= run.end:
                return run
        return None

    def _held_run(self, side: SideGrid, block: int) -> PagedRows:
        run = self._run(side, block)
        assert run is not None, "the caller asks `has` first"
        return run

    def _sinks(self, side: SideGrid) -> tuple[PagedRows, int]:
        store, row = self._stores[side.name]
        assert store.parts is not None, "coded tokens stand behind the sinks"
        return store.parts.sinks, row

    def _page_ids(self, side: SideGrid, run: PagedRows, first: int, end: int) -> PageIds:
        skip = run.start // side.layout.tokens
        return run.table[self._stores[side.name][1], first - skip : end - skip].copy()


def fill(cache: QuantizedCache, grid: BlockGrid, blocks: Sequence[BlockPages], dtype: torch.dtype) -> None:
    """Begin an empty cache with the tokens of some blocks; `blocks[i]` has all arrays that block i still needs.

    The cache is then as after appending these tokens and enough others to push them out of the recent window. `dtype`
    is what the model computes in.
    """
    cohorts = [layer.empty_cohort([0], 0) for layer in cache.quantized_layers]
    for side in grid.sides:
        _share(side, blocks, getattr(cohorts[side.layer].stored_heads[side.group], side.side))
    for layer, cohort in zip(cache.quantized_layers, cohorts, strict=True):
        layer.state = layer.state._replace(columns=grid.end(len(blocks)), dtype=dtype, cohorts=(cohort,))


def _share(side: SideGrid, blocks: Sequence[BlockPages], store: SideStore) -> None:
    """Give an empty store the pages of some blocks: all tokens are coded, none waits in the tail."""
    count = len(blocks)
    dropped, coded = side.dropped(count), side.coded(count)
    first_page, first_block = dropped // side.layout.tokens, side.first_block(count)
    ids: list[PageIds] = []
    for block in range(first_block, count):
        span, pages = side.span(block), blocks[block][side.name].pages
        last = len(pages) if block == count - 1 else span.end - span.first
        ids.append(pages[max(0, first_page - span.first) : last])
    pool = blocks[-1][side.name].pool
    run = PagedRows.of_table(pool, np.concatenate(ids)[None], first_page * side.layout.tokens, dropped, coded)
    if side.sinks_layout is None:
        sinks = PagedRows(PagePool(store.sinks_layout, pool.device), 1)
    else:
        held = blocks[0][f"{side.name}.sinks"]
        sinks = PagedRows.of_table(held.pool, held.pages[None], 0, 0, side.plan.sinks)
    store.parts = SideParts(CodedRuns(pool, 1, [run]), PagedRows(tail_pool(store.tail_layout, pool.device), 1), sinks)
    store.tokens, store.coded, store.dropped = side.plan.sinks + coded, coded, dropped
