"""A call's queries by what they read: rows that are stored together, heads whose keys are stored alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.cache.cohorts import Cohort, StoredHeads
from kvassay.cache.packed_view import NewTokens, SeenTokens


class AttendedPart(NamedTuple):
    """Rows and heads that attention works on together."""

    seen: SeenTokens
    cohort: Cohort
    group: StoredHeads
    ratio: int
    """Query heads a KV head."""
    rows: Tensor | slice
    query_heads: Tensor | slice

    def new_tokens(self) -> NewTokens | None:
        """The call's own keys and values of these rows and heads; None where it has none beside the pages."""
        if self.seen.new is None:
            return None
        keys, values = (each[self.rows] for each in self.seen.new)
        if len(self.group.heads) < keys.shape[1]:
            keys, values = (each[:, list(self.group.heads)] for each in (keys, values))
        return NewTokens(keys, values)

    def mask(self, mask: Tensor) -> Tensor:
        """Of these rows and query heads; axes of one entry stay."""
        mask = mask[self.rows] if mask.shape[0] > 1 else mask
        return mask[:, self.query_heads] if mask.shape[1] > 1 else mask


def attend_parts(query: Tensor, seen: SeenTokens, attend: Callable[[Tensor, AttendedPart], Tensor]) -> Tensor:
    """`attend` for each part of `query` `[batch, query_heads, queries, head_dim]`, put together in its dtype."""
    geometry = seen.layer.geometry
    out = query.new_empty((*query.shape[:3], geometry.value_dim))
    ratio = query.shape[1] // geometry.kv_heads
    for cohort in seen.cohorts:
        rows = _picked(cohort.rows, query.shape[0], query.device)
        for group in cohort.stored_heads:
            numbers = [head * ratio + index for head in group.heads for index in range(ratio)]
            heads = _picked(numbers, query.shape[1], query.device)
            result = attend(query[rows][:, heads], AttendedPart(seen, cohort, group, ratio, rows, heads)).to(out.dtype)
            if isinstance(heads, slice):
                out[rows] = result
            elif isinstance(rows, slice):
                out[:, heads] = result
            else:
                out[rows[:, None], heads[None]] = result
    for side in ("keys", "values"):
        seen.layer.was_read(seen.cohorts, side)
    return out


def _picked(numbers: Sequence[int], count: int, device: torch.device) -> Tensor | slice:
    """Index of an axis; a slice where all are taken in order, which copies nothing."""
    if tuple(numbers) == tuple(range(count)):
        return slice(None)
    return torch.tensor(tuple(numbers), device=device)
