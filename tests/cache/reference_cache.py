"""What a cache is, written as lists: each token of each row with its exact value and, once committed, its decoded one.

No page, no table, no sharing: rows are copied, tokens are looked at one by one. The stateful test holds QuantizedCache
to it after every step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.formats import quantizer


@dataclass
class Token:
    exact: Tensor
    """[kv_heads, dim], rounded to the exact dtype."""
    decoded: Tensor | None = None
    place: int = 0
    """Which token of its block it is."""


@dataclass
class ReferenceRow:
    """One side of one row: tokens from its own first one on."""

    plan: SidePlan
    exact_dtype: str
    tokens: list[Token] = field(default_factory=list)
    exact_from: int = 0
    """First token, after the sinks, that a crop can find exact."""
    dropped: int = 0

    @property
    def coded(self) -> int:
        """Coded tokens after the sinks."""
        return sum(token.decoded is not None for token in self.tokens[self.plan.sinks :])

    def append(self, values: Tensor, recording: bool, window_record: int) -> None:
        dtype = self.plan.spec.code_dtype if self.plan.spec.is_exact else self.exact_dtype
        self.tokens += [Token(values[:, index].to(getattr(torch, dtype)).float()) for index in range(values.shape[1])]
        block = self.plan.spec.tokens_per_block
        after = self.tokens[self.plan.sinks :]
        first = self.coded
        while len(after) - first - self.plan.recent >= block:
            exact = torch.stack([token.exact for token in after[first : first + block]], dim=1)[None]
            codec = quantizer(self.plan.spec)
            decoded = codec.decode(codec.encode(exact).streams)[0]
            for place in range(block):
                after[first + place].decoded, after[first + place].place = decoded[:, place], place
            first += block
        kept = max(self.exact_from, len(after) - self.plan.recent - block - window_record)
        self.exact_from = min(first, kept) if recording else first
        self._drop(window_record if recording else 0)

    def _drop(self, extra: int) -> None:
        if self.plan.sliding_window is not None:
            block = self.plan.spec.tokens_per_block
            behind = max(0, len(self.tokens) - self.plan.sliding_window - extra) // block * block
            self.dropped = max(self.dropped, min(behind, self.coded))

    def may_crop_to(self, count: int) -> bool:
        window = self.plan.sliding_window
        return window is None or self.dropped <= max(0, count - window + 1)

    def crop(self, count: int, recording: bool, window_record: int) -> None:
        del self.tokens[count:]
        after = self.tokens[self.plan.sinks :]
        block = self.plan.spec.tokens_per_block
        lowest = max(self.exact_from, max(0, len(after) - self.plan.recent) // block * block)
        begins = [index for index in range(lowest, self.coded) if after[index].place == 0]
        # A begin of a block is where codes may end; the token behind the last coded one is such a place if it is whole.
        if begins:
            for token in after[begins[0] :]:
                token.decoded = None
        self.exact_from = self.coded
        self._drop(window_record if recording else 0)

    def read(self) -> Tensor:
        """[kv_heads, tokens, dim]."""
        if not self.tokens:
            return torch.zeros(0)
        return torch.stack([token.exact if token.decoded is None else token.decoded for token in self.tokens], dim=1)


class ReferenceCache:
    """Rows of (layer, side) lists."""

    def __init__(self, kv_format: KVFormat, geometry, padding: list[int], record: int) -> None:
        self.kv_format, self.geometry, self.record = kv_format, geometry, record
        self.columns = 0
        self.recording = False
        self.shows_past = False
        """True where the last change of the tokens was a recorded append, which a crop would take back."""
        self.padding = list(padding)
        self.rows = [self._row() for _ in padding]

    def _row(self) -> list[tuple[ReferenceRow, ReferenceRow]]:
        row = []
        for index, layer in enumerate(self.geometry.layers):
            group = head_groups(self.kv_format, index, layer)[0]
            row.append(tuple(ReferenceRow(plan, self.kv_format.exact_dtype) for plan in (group.keys, group.values)))
        return row

    def copy(self) -> ReferenceCache:
        return copy.deepcopy(self)

    def append(self, values: list[tuple[Tensor, Tensor]]) -> None:
        """By layer, keys and values [batch, kv_heads, tokens, dim]."""
        count = values[0][0].shape[2]
        self.shows_past = self.recording
        for index, row in enumerate(self.rows):
            skip = max(0, self.padding[index] - self.columns)
            for layer, sides in enumerate(row):
                for side, given in zip(sides, values[layer], strict=True):
                    side.append(given[index][:, skip:], self.recording, self.record)
        self.columns += count

    def own_tokens(self, index: int, columns: int) -> int:
        return max(0, columns - self.padding[index])

    def may_crop(self, removed: int) -> bool:
        return all(
            side.may_crop_to(self.own_tokens(index, self.columns - removed))
            for index, row in enumerate(self.rows)
            for sides in row
            for side in sides
        )

    def crop(self, removed: int) -> None:
        self.columns -= removed
        self.shows_past = False
        for index, row in enumerate(self.rows):
            for sides in row:
                for side in sides:
                    side.crop(self.own_tokens(index, self.columns), self.recording, self.record)

    def select(self, rows: list[int]) -> None:
        self.rows = [copy.deepcopy(self.rows[row]) for row in rows]
        self.padding = [self.padding[row] for row in rows]

    def take_rows(self, other: ReferenceCache) -> None:
        columns = max(self.columns, other.columns)
        self.padding = [p + columns - self.columns for p in self.padding]
        self.padding += [p + columns - other.columns for p in other.padding]
        self.rows += copy.deepcopy(other.rows)
        self.columns = columns

    def trim_padding(self) -> int:
        count = min(self.padding)
        self.padding = [p - count for p in self.padding]
        self.columns -= count
        return count

    def shown_from(self, layer: int, offset: int) -> int:
        """First column that a layer shows: the next query's, or before a crop what rows and sides still hold."""
        if not self.shows_past:
            return offset
        held = [self.padding[index] + side.dropped for index, row in enumerate(self.rows) for side in row[layer]]
        return min(offset, max(held))

    def read(self, layer: int, side: int, begin: int) -> Tensor:
        """Columns from `begin` on of all rows, padding zero."""
        shape = self.geometry.layers[layer]
        dim = shape.head_dim if side == 0 else shape.value_dim
        seen = torch.zeros(len(self.rows), shape.kv_heads, self.columns - begin, dim)
        for index, row in enumerate(self.rows):
            low = max(begin, self.padding[index])
            if low < self.columns:
                seen[index, :, low - begin :] = row[layer][side].read()[:, low - self.padding[index] :]
        return seen
