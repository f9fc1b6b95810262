"""CodedRuns: the coded tokens of one side of one layer, for sequences of equal length.

They are one run of pages, and more only after a crop has cut a block of several tokens: the rest keeps its codes, and
the next block begins a run behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.formats import Encoded


class CodedRuns:
    """Runs of coded tokens, all in `pool`. Tokens are counted from the end of the sinks."""

    def __init__(self, pool: PagePool, rows: int, runs: Sequence[PagedRows] = ()) -> None:
        self.pool = pool
        self.rows = rows
        self._runs = list(runs)

    @property
    def all(self) -> tuple[PagedRows, ...]:
        """Every run, one without tokens included, which keeps its block table for the next ones."""
        return tuple(self._runs)

    @property
    def held(self) -> tuple[PagedRows, ...]:
        """The runs that hold tokens, in their order."""
        return tuple(run for run in self._runs if run.tokens)

    def pages_missing(self, dropped: int, first: int, end: int) -> int:
        """Pages that tokens `first` to `end - 1` take beyond those that come free as tokens before `dropped` leave."""
        if first == end:
            return 0
        kept = [run for run in self.held if run.end > dropped]
        if kept and kept[-1].ends_on_block:
            new = kept[-1].pages_to_append(end)
        else:
            new = self.rows * -(-(end - self._start_for(first, alone=not kept)) // self.pool.layout.tokens)
        return max(0, new - sum(run.pages_freed_before(dropped) for run in self._runs)) if new else 0

    def append(self, first: int, pieces: Sequence[Encoded], columns: int) -> None:
        """Take blocks whose first token is `first`; the table of a single run has room for `columns` pages.

        Where all coded tokens left a sliding layer at once there may be no block, and the table waits for the next.
        """
        if pieces or (columns and not self._runs):
            run = self._open_run(first)
            for piece in pieces:
                run.append(piece.streams)
        if len(self._runs) == 1:
            self._runs[0].columns_to_keep = columns
            self._runs[0].make_room()

    def drop_before(self, token: int) -> None:
        """Forget tokens before `token`."""
        for run in self._runs:
            run.drop_before(token)
        # One that lost all its tokens goes on where the next ones come, if pages still begin at the same bounds.
        page = self.pool.layout.tokens
        in_step = [run for run in self._runs if run.start % page == 0][:1]
        self._runs = [run for run in self._runs if run.tokens] or in_step

    def drop_from(self, token: int) -> None:
        """Forget tokens from `token` on."""
        for run in self._runs:
            run.drop_from(token)
        self._runs = [run for run in self._runs if run.tokens]

    def first_bound(self, token: int, end: int) -> int:
        """The first bound of a block from `token` on; `end` where it would lie behind it."""
        block = self.pool.layout.block_tokens
        for run in self._runs:
            bound = run.start + -(-(max(token, run.first) - run.start) // block) * block
            if bound <= run.end:
                end = min(end, bound)
        return end

    def select(self, rows: Sequence[int]) -> CodedRuns:
        """The same tokens of some rows, in this order, sharing their pages."""
        return CodedRuns(self.pool, len(rows), [run.select(rows) for run in self._runs])

    def read_ahead(self, token: int) -> None:
        """Say that tokens from `token` on are read next."""
        if self._runs:
            self.pool.read_ahead(np.concatenate([run.pages_from(token).ravel() for run in self._runs]))

    def _open_run(self, first: int) -> PagedRows:
        """The run that takes a block whose first token is `first`."""
        if self._runs and not self._runs[-1].tokens:
            if first % self.pool.layout.block_tokens == 0:
                self._runs[-1].begin_at(first)
                return self._runs[-1]
            self._runs.clear()
            start = first
        elif self._runs and self._runs[-1].ends_on_block:
            return self._runs[-1]
        else:
            start = self._start_for(first, alone=not self._runs)
        self._runs.append(PagedRows(self.pool, self.rows, start=start, first=first))
        return self._runs[-1]

    def _start_for(self, first: int, alone: bool) -> int:
        """Where the first page of a new run begins: at a page bound of the side if its blocks are in step with it."""
        if alone and first % self.pool.layout.block_tokens == 0:
            return first // self.pool.layout.tokens * self.pool.layout.tokens
        return first
