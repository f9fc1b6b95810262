"""The pages of one side of one layer: coded tokens, full-precision tail and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kvassay.cache.coded_runs import CodedRuns
from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.side_codec import SideCodec
from kvassay.core.kv_format import SidePlan
from kvassay.core.paging import TAIL_PAGE_TOKENS, PageLayout
from kvassay.core.spec import DTYPE_NBYTES
from kvassay.core.tiles import decoded_tokens
from kvassay.formats.base import Streams


class PagePart(NamedTuple):
    """Tokens of one kind that follow each other."""

    kind: Literal["sinks", "coded", "tail"]
    rows: PagedRows
    start: int
    """Token in the first place of the first page, in the numbering of `begin` and `end`."""
    begin: int
    end: int


class SideParts(NamedTuple):
    """Coded tokens and tail are counted from the end of the sinks."""

    coded: CodedRuns
    tail: PagedRows
    sinks: PagedRows

    @property
    def pools(self) -> tuple[PagePool, PagePool, PagePool]:
        return self.coded.pool, self.tail.pool, self.sinks.pool

    def select(self, rows: Sequence[int]) -> SideParts:
        """The same tokens of some rows, in this order, sharing their pages."""
        return SideParts(self.coded.select(rows), self.tail.select(rows), self.sinks.select(rows))

    def coded_after_crop(self, plan: SidePlan, coded: int, left: int) -> int:
        """End of the coded tokens once `left` tokens after the sinks remain: as few as exact copies allow."""
        end = min(coded, left)
        if not self.tail.tokens or self.tail.first >= end:
            return end
        block = plan.spec.tokens_per_block
        lowest = max(self.tail.first, max(0, left - plan.recent) // block * block)
        # Codes end where a block ends.
        return self.coded.first_bound(lowest, end)

    def waiting(self, begin: int, end: int) -> Tensor:
        """Exact values of tokens in the tail, `[batch, kv_heads, end - begin, dim]`."""
        return _floats(self.tail, begin, end)

    def page_parts(self, sinks: int, coded_end: int, begin: int, end: int) -> Iterator[PagePart]:
        """Pages of tokens `begin` to `end - 1` in their order, counted as in `pieces`."""
        if begin < min(end, sinks):
            yield PagePart("sinks", self.sinks, self.sinks.start, begin, min(end, sinks))
        for run in self.coded.held:
            low, high = max(begin, sinks + run.first), min(end, sinks + run.end)
            if low < high:
                yield PagePart("coded", run, sinks + run.start, low, high)
        if max(begin, coded_end) < end:
            yield PagePart("tail", self.tail, sinks + self.tail.start, max(begin, coded_end), end)

    def pieces(
        self, codec: SideCodec, sinks: int, coded_end: int, begin: int, end: int, dtype: torch.dtype
    ) -> Iterator[tuple[int, int, Tensor]]:
        """(first token, end, values) that follow each other, each small enough to be worked on at once.

        Tokens are counted from the first sink; `sinks` tokens are sinks, and the tail is read from `coded_end` on.
        """
        for low, high in self._bounds(begin, min(end, sinks), 1):
            yield low, high, _floats(self.sinks, low, high).to(dtype)
        for run in self.coded.held:
            low, high = max(begin, sinks + run.first), min(end, sinks + run.end)
            for one, other in self._bounds(low, high, self.coded.pool.layout.tokens, sinks + run.start):
                yield one, other, codec.decode(run, one - sinks, other - sinks, dtype)
        for low, high in self._bounds(max(begin, coded_end), end, TAIL_PAGE_TOKENS, sinks):
            yield low, high, self.waiting(low - sinks, high - sinks).to(dtype)

    def _bounds(self, begin: int, end: int, page: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """`begin` to `end` in pieces that end on page bounds, which are counted from `start`."""
        token = self.tail.pool.layout.regions[0].stream
        elements = self.tail.rows * token.block_nbytes // DTYPE_NBYTES[token.dtype]
        step = decoded_tokens(elements, page)
        while begin < end:
            bound = min(end, start + (begin - start) // page * page + step)
            yield begin, bound
            begin = bound


def tail_pool(layout: PageLayout, device: torch.device) -> PagePool:
    """Pages of a tail: they are given back as soon as no row of their column needs them."""
    return PagePool(layout, device, by_column=True)


def float_streams(values: Tensor) -> Streams:
    """Plain floats as the arrays of their pages: one block a token."""
    return {"codes": values.unsqueeze(3)}


def _floats(rows: PagedRows, begin: int, end: int) -> Tensor:
    return rows.read(begin, end)["codes"].flatten(2, 3)
