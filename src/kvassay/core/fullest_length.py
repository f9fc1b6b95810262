"""The length, out of all up to a bound, at which a cache takes the most bytes: by formula, without torch.

A row's bytes are a sum over sides of what never falls with the length (codes, sinks, page numbers) and of the tail's
pages, which fall whenever waiting tokens are packed. Two facts make the search short.

With P a common multiple of every side's block and of a tail page, no length takes more than the one P further on: the
tail has at least as many pages there (as many, once the window is full), and nothing else falls. So the last P lengths
decide. And between two falls bytes only rise, so that of these lengths only the bound itself and those just before a
fall can be the fullest. Where blocks have large common multiples the search ends earlier, at the length below which
even a full tail on every side would not reach the most that was found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.paging import (
    PAGE_RECORD_NBYTES,
    TABLE_ENTRY_NBYTES,
    TAIL_PAGE_TOKENS,
    exact_page_layout,
    page_layout,
    side_pages,
    tail_capacity,
)


class _Side(NamedTuple):
    """A side of a head group; equal ones are counted, not repeated."""

    plan: SidePlan
    coded_nbytes: int
    """Of one page, as the two that follow."""
    tail_nbytes: int
    sinks_nbytes: int

    def tail(self, tokens: int) -> int:
        return side_pages(self.plan, tokens).tail_pages * self.tail_nbytes

    def fullest_tail(self, tokens: int) -> int:
        """At least what the tail takes at any length up to `tokens`."""
        return tail_capacity(self.plan, max(0, tokens - self.plan.sinks)) * self.tail_nbytes

    def rising(self, tokens: int) -> int:
        """Bytes beside the tail's pages."""
        pages = side_pages(self.plan, tokens)
        record = PAGE_RECORD_NBYTES + TABLE_ENTRY_NBYTES
        return (
            pages.coded_pages * self.coded_nbytes + pages.sink_pages * self.sinks_nbytes + pages.page_numbers * record
        )


class RowGrowth:
    """Bytes of one row of a cache at any length, and the length where they are most."""

    def __init__(self, geometry: CacheGeometry, kv_format: KVFormat) -> None:
        self._sides: Counter[_Side] = Counter()
        for index, layer in enumerate(geometry.layers):
            for group in head_groups(kv_format, index, layer):
                for plan, dim in ((group.keys, layer.head_dim), (group.values, layer.value_dim)):
                    self._sides[_side(plan, group.num_heads, dim, kv_format)] += 1
        self._period = math.lcm(TAIL_PAGE_TOKENS, *(side.plan.spec.tokens_per_block for side in self._sides))

    def nbytes(self, tokens: int) -> int:
        """One row of `tokens` tokens, without static arrays, which belong to the cache."""
        return self._rising(tokens) + sum(count * side.tail(tokens) for side, count in self._sides.items())

    def fullest_length(self, tokens: int) -> int:
        """The length of 1 to `tokens` that takes most; of several the longest."""
        best, most = tokens, self.nbytes(tokens)
        for length in self._before_falls(tokens):
            if self._rising(length) + self._fullest_tails(length) <= most:
                break
            if (found := self.nbytes(length)) > most:
                best, most = length, found
        return best

    def _before_falls(self, tokens: int) -> Iterator[int]:
        """Lengths of the last period after which some side packs a block, falling."""
        lowest = max(1, tokens - self._period + 1)
        ends = [
            (side.plan.sinks + side.plan.recent, side.plan.spec.tokens_per_block)
            for side in self._sides
            if side.fullest_tail(tokens)
        ]
        length = tokens
        while True:
            # A block is packed with token `offset + k * block`; the length before it is asked for.
            earlier = [
                offset + (length - offset) // block * block - 1 for offset, block in ends if length >= offset + block
            ]
            length = max(earlier, default=0)
            if length < lowest:
                return
            yield length

    def _rising(self, tokens: int) -> int:
        return sum(count * side.rising(tokens) for side, count in self._sides.items())

    def _fullest_tails(self, tokens: int) -> int:
        return sum(count * side.fullest_tail(tokens) for side, count in self._sides.items())


def _side(plan: SidePlan, heads: int, dim: int, kv_format: KVFormat) -> _Side:
    return _Side(
        plan,
        page_layout(plan.spec, heads, dim, plan.side).nbytes,
        exact_page_layout(kv_format.exact_dtype, heads, dim, plan.side, TAIL_PAGE_TOKENS).nbytes,
        exact_page_layout(kv_format.exact_dtype, heads, dim, plan.side, max(1, plan.sinks)).nbytes,
    )
