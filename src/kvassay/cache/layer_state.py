"""What a layer holds, and how the rows of two layers become one batch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvassay.cache.cohorts import Cohort, select_rows


class LayerState(NamedTuple):
    """All that a layer holds."""

    columns: int
    dtype: torch.dtype
    """Of the keys appended last."""
    record_past: bool
    left_padding: tuple[int, ...] | None
    """Of the rows of a batch that begins anew."""
    cohorts: tuple[Cohort, ...]

    @property
    def rows(self) -> int:
        return sum(len(cohort.rows) for cohort in self.cohorts)

    def joined(self, other: LayerState) -> LayerState:
        """With the rows of `other` behind these, whose pages they share. The shorter of the two is padded on the left.

        All else is as here.
        """
        columns, first = max(self.columns, other.columns), self.rows
        mine = (one._replace(padding=one.padding + columns - self.columns) for one in self.cohorts)
        theirs = (
            one._replace(rows=tuple(first + row for row in one.rows), padding=one.padding + columns - other.columns)
            for one in select_rows(other.cohorts, range(other.rows))
        )
        return self._replace(columns=columns, cohorts=(*mine, *theirs))

    def trimmed(self, columns: int) -> LayerState:
        """Without leading columns that are padding in every row."""
        assert all(cohort.padding >= columns for cohort in self.cohorts), "the cache checks all layers first"
        cohorts = tuple(one._replace(padding=one.padding - columns) for one in self.cohorts)
        return self._replace(columns=self.columns - columns, cohorts=cohorts)
