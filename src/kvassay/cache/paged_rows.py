"""PagedRows: consecutive tokens of some equally long sequences, in pages of one pool.

Tokens have numbers, which the owner gives; pages lie at fixed distances from `start`. Tokens enter by whole blocks at
the end and leave at either end. A sequence that shares its last page (after a fork, a repeat or a reorder) gets its own
copy of that page before it writes, so what others read never changes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.core.paging import TABLE_ENTRY_NBYTES
from kvassay.core.spec import DTYPE_NBYTES
from kvassay.formats.base import Streams


class PagedRows:
    """Tokens `first` to `end - 1` of `rows` sequences."""

    def __init__(self, pool: PagePool, rows: int, start: int = 0, first: int | None = None) -> None:
        self.pool = pool
        self.start = start
        """Number of the token in the first place of the first page."""
        self.first = start if first is None else first
        self.end = self.first
        self.columns_to_keep = 0
        """Columns that the block table has room for; the owner says how many it will come to need."""
        self._columns: PageIds = np.zeros((rows, 0), np.int32)
        self._used = 0

    @classmethod
    def of_table(
        cls, pool: PagePool, table: PageIds, start: int, first: int, end: int, columns_to_keep: int = 0
    ) -> PagedRows:
        """Tokens `first` to `end - 1` that lie in pages of `pool`, which get one reference more for each entry."""
        rows = cls(pool, table.shape[0], start, first)
        rows.end, rows.columns_to_keep = end, columns_to_keep
        pool.retain(table)  # first: what an interrupt leaves half-done may keep a page too long, never give one away
        rows.table = table
        return rows

    def __del__(self) -> None:
        # A cache that is no longer used gives its pages back to those that share the pool.
        if self._used and not sys.is_finalizing():
            self.pool.give_up(self.table, trim=self.pool.by_column)

    @property
    def table(self) -> PageIds:
        """Pages of each row in the order of tokens, `[rows, pages]`."""
        return self._columns[:, : self._used]

    @table.setter
    def table(self, table: PageIds) -> None:
        room = max(table.shape[1], self.columns_to_keep)
        columns = np.zeros((table.shape[0], room), np.int32)
        columns[:, : table.shape[1]] = table
        self._columns = columns
        self._used = table.shape[1]

    def make_room(self) -> None:
        """Give the block table its `columns_to_keep`."""
        if self._columns.shape[1] < self.columns_to_keep:
            self.table = self.table

    @property
    def rows(self) -> int:
        return self._columns.shape[0]

    @property
    def tokens(self) -> int:
        return self.end - self.first

    @property
    def table_nbytes(self) -> int:
        return self._columns.size * TABLE_ENTRY_NBYTES

    @property
    def ends_on_block(self) -> bool:
        """False after a block was cut; no further token can enter then."""
        return (self.end - self.start) % self.pool.layout.block_tokens == 0

    def pages_to_append(self, end: int) -> int:
        """Pages that appending tokens up to `end` takes, copies of shared ones included."""
        page = self.pool.layout.tokens
        if end <= self.end:
            return 0
        last = self.start + self._used * page
        new = self.rows * max(0, -(-(end - last) // page))
        if self.end >= last:
            return new
        if (self.pool.references(self.table[:, -1]) == 1).all():
            return new
        # Of rows that share a page, one keeps it unless somebody else reads it.
        pages, counts = np.unique(self.table[:, -1], return_counts=True)
        return new + self.rows - int(np.count_nonzero(self.pool.references(pages) == counts))

    def pages_freed_before(self, token: int) -> int:
        """Pages that come free where `drop_before(token)` follows."""
        if not (columns := self._columns_before(token)):
            return 0
        dropped, counts = np.unique(self.table[:, :columns], return_counts=True)
        return int(np.count_nonzero(self.pool.references(dropped) == counts))

    def append(self, arrays: Streams) -> None:
        """Take whole blocks: of each array `[rows, heads, blocks, *block_shape]`."""
        assert self.ends_on_block, "a cut run takes no tokens"
        blocks = next(iter(arrays.values())).shape[2]
        # Where pages leave memory, a few are filled in all arrays before the next are begun.
        step = blocks if self.pool.most_pages is None else self.pool.most_pages * self.pool.layout.blocks
        for begin in range(0, blocks, max(1, step)):
            self._append({name: array[:, :, begin : begin + step] for name, array in arrays.items()})

    def _append(self, arrays: Streams) -> None:
        layout = self.pool.layout
        blocks = next(iter(arrays.values())).shape[2]
        tokens = blocks * layout.block_tokens
        last = self.start + self.table.shape[1] * layout.tokens
        if self.end < last:
            self._own_last_page()
        missing = max(0, -(-(self.end + tokens - last) // layout.tokens))
        if missing:
            fresh = self.pool.allocate(self.rows * missing)
            # Free pages come in the order of their slabs.
            fresh = fresh.reshape(missing, self.rows).T if self.pool.by_column else fresh.reshape(self.rows, missing)
            self.table = np.concatenate((self.table, fresh), axis=1)
        column = (self.end - self.start) // layout.tokens
        first_block = (self.end - self.start) % layout.tokens // layout.block_tokens
        for region in layout.regions:
            array = arrays[region.stream.name]
            raw = array.contiguous().view(torch.uint8).reshape(*array.shape[:3], region.block_nbytes)
            self.pool.write(region, self.table[:, column:], first_block, raw)
        self.end += tokens
        self.pool.close(self.table[:, column : (self.end - self.start) // layout.tokens])

    def step_arrays(self, column: int) -> list[Any] | None:
        """The arrays of the pages of one column, for the compiled module; None where it cannot write them."""
        return self.pool.step_arrays(self.table[:, column])

    def place_of(self, token: int) -> int:
        """Place of a token in its page."""
        return (token - self.start) % self.pool.layout.tokens

    def loses_page_before(self, token: int) -> bool:
        """Whether `drop_before(token)` would give a page back."""
        return self._columns_before(token) > 0

    def read(self, begin: int, end: int) -> Streams:
        """Arrays of the blocks that hold tokens `begin` to `end - 1`; the first and the last block come whole."""
        layout = self.pool.layout
        assert self.first <= begin < end <= self.end, "the owner asks for tokens that are here"
        column, last = (begin - self.start) // layout.tokens, -(-(end - self.start) // layout.tokens)
        block = layout.block_tokens
        skip = (begin - self.start) // block - column * layout.blocks
        count = -(-(end - self.start) // block) - (begin - self.start) // block
        found: Streams = {}
        arrays = self.pool.read_all(layout.regions, self.table[:, column:last])
        for region, array in zip(layout.regions, arrays, strict=True):
            stream = region.stream
            raw = array[:, :, skip : skip + count]
            dtype = getattr(torch, stream.dtype)
            if DTYPE_NBYTES[stream.dtype] > 1:
                raw = raw.contiguous()
            found[stream.name] = raw.view(dtype).unflatten(-1, stream.block_shape)
        return found

    def pages_from(self, token: int) -> PageIds:
        """Pages of the held tokens from `token` on, `[rows, pages]`."""
        column = (max(token, self.first) - self.start) // self.pool.layout.tokens
        return self.table[:, column:]

    def drop_before(self, token: int) -> None:
        """Forget tokens before `token`, and give back pages that hold none of the rest."""
        count = self._columns_before(token)
        self.first = max(self.first, min(token, self.end))
        if count:
            left = self.table[:, :count]
            self.table = self.table[:, count:].copy()
            self.start += count * self.pool.layout.tokens
            self.pool.release(left)
        if not self.table.shape[1]:
            self._restart(self.first)

    def drop_from(self, token: int) -> None:
        """Forget tokens from `token` on."""
        self.end = min(self.end, max(token, self.first))
        page = self.pool.layout.tokens
        kept = -(-(self.end - self.start) // page) if self.end > self.first else 0
        if kept < self.table.shape[1]:
            left = self.table[:, kept:]
            self.table = self.table[:, :kept].copy()
            self.pool.release(left)
        if not kept:
            self._restart(self.end)

    def begin_at(self, token: int) -> None:
        """Say which token comes next; only where nothing is held."""
        assert not self.table.shape[1], "tokens follow each other"
        self._restart(token)

    def select(self, rows: Sequence[int]) -> PagedRows:
        """The same tokens of some rows, in this order, sharing their pages."""
        if list(rows) == list(range(self.rows)):
            # A fork of all rows shares the table too, until one of the two changes it.
            chosen = PagedRows(self.pool, len(rows), self.start, self.first)
            chosen.end, chosen.columns_to_keep = self.end, self.columns_to_keep
            self.pool.retain(self.table)
            chosen._columns, chosen._used = self._columns, self._used
            return chosen
        table = self.table[np.asarray(rows, np.int64)]
        return PagedRows.of_table(self.pool, table, self.start, self.first, self.end, self.columns_to_keep)

    def block_ranges(self) -> list[range]:
        """For each column of the table, the places of the page whose blocks hold tokens that are still held."""
        layout = self.pool.layout
        found: list[range] = []
        for column in range(self.table.shape[1]):
            begin = self.start + column * layout.tokens
            low, high = max(begin, self.first), min(begin + layout.tokens, self.end)
            found.append(range((low - begin) // layout.block_tokens, -(-(high - begin) // layout.block_tokens)))
        return found

    def held_blocks(self) -> dict[int, int]:
        """Blocks that are filled with tokens still held, by page number; a page that rows share stands once."""
        held: dict[int, int] = {}
        for column, blocks in enumerate(self.block_ranges()):
            held.update({int(page): len(blocks) for page in np.unique(self.table[:, column])})
        return held

    def raw(self) -> Tensor:
        """Bytes of the held pages, a copy `[rows, pages, page_nbytes]`."""
        return self.pool.raw(self.table.ravel()).unflatten(0, self.table.shape)

    def _columns_before(self, token: int) -> int:
        """Columns without a token that is still held once those before `token` are forgotten."""
        return self._used if token >= self.end else max(0, token - self.start) // self.pool.layout.tokens

    def _restart(self, token: int) -> None:
        """No page is held: the next one begins at a page bound, counted as before."""
        page = self.pool.layout.tokens
        self.start += (token - self.start) // page * page
        self.first = self.end = token

    def _own_last_page(self) -> None:
        """A copy of the last page for each row that shares it; of rows that share one, one may keep it."""
        last = self.table[:, -1]
        shared = self.pool.references(last) > 1
        if not shared.any():
            return
        self._columns = self._columns.copy()
        for row in np.flatnonzero(shared):
            page = self.table[row : row + 1, -1].copy()
            if self.pool.references(page)[0] > 1:
                self.table[row, -1] = self.pool.copy(page)[0]
                self.pool.release(page)
