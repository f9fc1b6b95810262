"""Attention over packed pages, one tile of tokens at a time, in torch.

For each tile of keys and values, decoded and then forgotten, scores are added to a running softmax: with m the largest
score so far, l the sum of exp(score − m) and a the sum of exp(score − m) · v, a tile with scores s and largest score m'
gives m ← max(m, m'), and l and a are scaled by exp(m_old − m) before the tile's sums are added; the output is a / l.
(Milakov and Gimelshein 2018, arXiv:1805.02867, section 3; over blocks of keys: FlashAttention, Dao et al. 2022,
arXiv:2205.14135, section 3.1.) So a step needs room for one tile, however long the text is.

Arithmetic is in float32, in float64 for a float64 model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvassay.cache.attended_parts import AttendedPart, attend_parts
from kvassay.cache.packed_view import SeenTokens
from kvassay.core.tiles import tile_tokens


class Scoring(NamedTuple):
    """What a model does between q·k and the softmax."""

    scaling: float
    softcap: float | None = None
    """Scores become softcap · tanh(score / softcap)."""
    sinks: Float[Tensor, " query_heads"] | None = None
    """Learned scores of a token without a value (GPT-OSS), which take part in the softmax."""


def tiled_attention(
    query: Float[Tensor, "batch query_heads queries head_dim"],
    seen: SeenTokens,
    mask: Bool[Tensor, "batch_or_1 heads_or_1 queries tokens"] | Tensor | None,
    scoring: Scoring,
) -> Float[Tensor, "batch query_heads queries value_dim"]:
    """Attention of a call's queries over the tokens it sees.

    `mask` is boolean (True: may look) or added to scores; its last axis begins at `seen.begin`. None lets query i of n
    look at all tokens up to its own, which is the n − i th from the end.
    """
    return attend_parts(query, seen, lambda own, part: _TiledPart(part).attend(own, mask, scoring))


class _Tile(NamedTuple):
    """Some tokens, not yet decoded."""

    begin: int
    """First column."""
    end: int
    keys: Callable[[], Tensor]
    values: Callable[[], Tensor]


class _TiledPart(NamedTuple):
    """One part, tile by tile."""

    part: AttendedPart

    def attend(self, query: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
        batch, query_heads, queries, head_dim = query.shape
        computing = torch.float64 if query.dtype == torch.float64 else torch.float32
        kv_heads = query_heads // self.part.ratio
        # Queries of one KV head side by side, so that each tile is read once.
        grouped = query.to(computing).reshape(batch, kv_heads, self.part.ratio * queries, head_dim) * scoring.scaling
        running = _RunningSoftmax(grouped, self.part.group.values.dim, self._sinks(scoring, queries, computing))
        for tile in self._tiles(computing, self.part.ratio * queries):
            # Keys are gone before values are read: one side of a tile is the most that is decoded at a time.
            scores = grouped @ tile.keys().transpose(-1, -2)
            if scoring.softcap is not None:
                scores = torch.tanh_(scores.div_(scoring.softcap)).mul_(scoring.softcap)
            self._mask(scores.unflatten(2, (self.part.ratio, queries)), mask, tile.begin, tile.end)
            running.add(scores, tile.values)
        return running.output().reshape(batch, query_heads, queries, -1).to(query.dtype)

    def _tiles(self, dtype: torch.dtype, queries: int) -> Iterator[_Tile]:
        """Tiles of the pages, then of the call's own tokens. `queries` are those that one KV head serves."""
        padding = self.part.cohort.padding
        begin, end = max(self.part.seen.begin, padding), self.part.seen.end
        keys, values = self.part.group.keys, self.part.group.values
        page = keys.coded_layout.tokens
        heads = max(1, keys.batch) * keys.kv_heads
        step = tile_tokens(heads * keys.dim, heads * queries, page)
        # Tiles end on page bounds of the keys, so that no page is decoded twice.
        start = padding + keys.plan.sinks
        while begin < end:
            bound = min(end, start + (begin - start) // page * page + step)
            low, high = begin - padding, bound - padding
            yield _Tile(begin, bound, partial(keys.read, dtype, low, high), partial(values.read, dtype, low, high))
            begin = bound
        if (new := self.part.new_tokens()) is not None:
            skip = max(0, padding - end)
            for first in range(skip, new.keys.shape[2], step):
                tokens = slice(first, min(first + step, new.keys.shape[2]))
                part = (partial(each[:, :, tokens].to, dtype) for each in new)
                yield _Tile(end + tokens.start, end + tokens.stop, *part)

    def _mask(self, scores: Tensor, mask: Tensor | None, begin: int, end: int) -> None:
        """Close what a query may not see. `scores` `[batch, kv_heads, ratio, queries, tokens]`, changed in place."""
        if mask is None:
            queries = scores.shape[3]
            # Query i stands in column `first + i`.
            first = self.part.seen.end if self.part.seen.new is not None else self.part.seen.end - queries
            if end > first + 1:
                column = torch.arange(begin, end, device=scores.device)
                own = first + torch.arange(queries, device=scores.device)
                scores.masked_fill_(column[None] > own[:, None], -torch.inf)
            return
        part = self.part.mask(mask[..., begin - self.part.seen.begin : end - self.part.seen.begin])
        part = part[:, :, None] if part.shape[1] == 1 else part.unflatten(1, (scores.shape[1], self.part.ratio))
        if part.dtype == torch.bool:
            scores.masked_fill_(~part, -torch.inf)
        else:
            scores += part

    def _sinks(self, scoring: Scoring, queries: int, dtype: torch.dtype) -> Tensor | None:
        """`[kv_heads, ratio * queries, 1]`."""
        if scoring.sinks is None:
            return None
        sinks = scoring.sinks[self.part.query_heads].to(dtype).unflatten(0, (-1, self.part.ratio))
        return sinks[:, :, None].expand(-1, -1, queries).flatten(1)[:, :, None]


class _RunningSoftmax:
    """The sums of the softmax over the tiles so far."""

    def __init__(self, query: Tensor, value_dim: int, sinks: Tensor | None) -> None:
        shape = query.shape[:3]
        self._sums = query.new_zeros((*shape, value_dim))
        if sinks is None:
            self._largest = query.new_full((*shape, 1), -torch.inf)
            self._total = query.new_zeros((*shape, 1))
        else:
            self._largest = sinks.expand(*shape, 1).clone()
            self._total = query.new_ones((*shape, 1))

    def add(self, scores: Tensor, values: Callable[[], Tensor]) -> None:
        """Take the scores of a tile, which are used up, and read its values last."""
        largest = torch.maximum(self._largest, scores.amax(-1, keepdim=True))
        # A query that has seen no open token yet keeps sums of zero: −inf minus −inf must not enter.
        base = torch.where(largest == -torch.inf, 0.0, largest)
        weights = scores.sub_(base).exp_()
        shrink = torch.exp(self._largest - base)
        self._total = self._total * shrink + weights.sum(-1, keepdim=True)
        self._sums = self._sums.mul_(shrink).add_(weights @ values())
        self._largest = largest

    def output(self) -> Tensor:
        """Zero for a query that may look at nothing, as padding does."""
        return self._sums / torch.where(self._total == 0, 1.0, self._total)
