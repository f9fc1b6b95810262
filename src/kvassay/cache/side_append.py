"""What an append to a SideStore will do: worked out, with all pages that it takes, before anything changes."""

from __future__ import annotations

import sys
from typing import NamedTuple

from torch import Tensor

from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.cache.side_parts import SideParts
from kvassay.core.paging import TAIL_PAGE_TOKENS
from kvassay.formats import Encoded


class Change(NamedTuple):
    """An append that is worked out and not yet made. Token numbers count from the end of the sinks."""

    tokens: int
    """Tokens of the store after it."""
    new_sinks: Tensor
    coded: int
    """End of the coded tokens."""
    dropped: int
    """Coded tokens before it leave a sliding layer."""
    first_encoded: int
    encoded: tuple[Encoded, ...]
    kept_from: int
    """Exact copies are held from here on."""
    new_tail: Tensor
    """The last of the new values, which enter the tail."""
    reserved: Reservation
    """Pages that it takes."""


class Reservation:
    """Pages that nobody else can take until the change is made, or given up.

    Total pages would not do: forks share a pool, and what one of them found free another may take before the change
    is made, or may copy from.
    """

    def __init__(self) -> None:
        self._held: list[tuple[PagePool, PageIds]] = []

    def __del__(self) -> None:
        if self._held and not sys.is_finalizing():
            for pool, pages in self._held:
                pool.give_up(pages, trim=True)

    def hold(self, pool: PagePool, count: int, column: int | None = None) -> None:
        """Hold `count` more pages; raises what the allocator raises, and then holds none at all."""
        if count:
            try:
                self._held.append((pool, pool.hold(count, column)))
            except BaseException:
                pool.trim()  # of slabs that it got before it failed
                self.give_up()
                raise

    def release(self) -> None:
        """Make the pages free for the change, which takes them at once."""
        held, self._held = self._held, []
        for pool, pages in held:
            pool.release(pages)

    def give_up(self) -> None:
        """Give the pages back where no change follows."""
        pools = [pool for pool, _ in self._held]
        self.release()
        for pool in pools:
            pool.trim()


def reserve(
    parts: SideParts, sink_tokens: int, dropped: int, encoded: range, kept_from: int, waiting: range
) -> Reservation:
    """All pages of a change, beyond those that it frees itself.

    There are `sink_tokens` sinks after it; `encoded` tokens get codes, `waiting` ones enter the tail.
    """
    coded, tail, sinks = parts
    reserved = Reservation()
    reserved.hold(sinks.pool, sinks.pages_to_append(sink_tokens))
    reserved.hold(coded.pool, coded.pages_missing(dropped, encoded.start, encoded.stop))
    if tail.tokens and tail.end > kept_from:
        new = tail.pages_to_append(waiting.stop)
    else:
        new = tail.rows * (-(-waiting.stop // TAIL_PAGE_TOKENS) - waiting.start // TAIL_PAGE_TOKENS)
    if waiting and new:
        reserved.hold(tail.pool, max(0, new - tail.pages_freed_before(kept_from)), tail.rows)
    return reserved
