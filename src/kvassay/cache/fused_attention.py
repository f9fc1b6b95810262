"""Attention over packed pages by the compiled kernels, without decoding a page.

Every query of a call is multiplied with the codes themselves; `kvassay.kernels` says which codes. Rows of a cohort and
heads of a head group go in one call. The call's own tokens, where it has several, are read exactly: they stand in pages
of floats that live as long as the call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.cache.attended_parts import AttendedPart, attend_parts
from kvassay.cache.cohorts import StoredHeads
from kvassay.cache.packed_view import NewTokens, SeenTokens
from kvassay.cache.side_parts import PagePart
from kvassay.cache.side_store import SideStore
from kvassay.cache.tiled_attention import Scoring
from kvassay.core.kernel_reach import MAX_QUERIES
from kvassay.core.kv_format import Side
from kvassay.core.paging import TAIL_PAGE_TOKENS, exact_page_layout
from kvassay.kernels.native import instruction_set, native_module
from kvassay.kernels.tile_formats import TileSide, float_format

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MOST_PARTS = 4
"""Sinks, coded tokens, tail and the call's own tokens."""


def is_long(query: Tensor, seen: SeenTokens) -> bool:
    """True for a call of so many tokens that pages are better decoded once for all of them."""
    return query.shape[1] // seen.layer.geometry.kv_heads * query.shape[2] > MAX_QUERIES


def call_obstacle(query: Tensor, seen: SeenTokens, mask: Tensor | None) -> str | None:
    """Why the kernels cannot serve a call that is not long; None where they can."""
    if (found := seen.layer.kernel_obstacle) is not None:
        return found
    for cohort in seen.cohorts:
        for group in cohort.stored_heads:
            parts = max(len(store.coded_pages) for store in (group.keys, group.values))
            if parts > _MOST_PARTS - 2 - (seen.new is not None):
                return "blocks were cut by a crop, and lie in more pieces than a kernel takes"
    if query.device.type != "cpu" or query.dtype not in _FLOATS:
        return (
            f"queries are {query.dtype} on {query.device.type}; kernels take float32, float16 and bfloat16 on the CPU"
        )
    if mask is not None and mask.dtype != torch.bool:
        return "the mask is added to scores; kernels take masks of booleans"
    return None


def fused_attention(
    query: Float[Tensor, "batch query_heads queries head_dim"],
    seen: SeenTokens,
    mask: Tensor | None,
    scoring: Scoring,
) -> Float[Tensor, "batch query_heads queries value_dim"]:
    """As `tiled_attention`, for a call without an obstacle."""
    return attend_parts(query, seen, lambda own, part: _attend(own, part, mask, scoring))


def serves_step(query: Tensor, seen: SeenTokens) -> bool:
    """True where `step_attention` serves a query without a mask: one token, a layer stored as one, no obstacle."""
    return (
        seen.whole is not None
        and query.shape[2] == 1
        and query.dtype in _FLOATS
        and query.is_cpu
        and seen.layer.kernel_obstacle is None
    )


def step_attention(
    query: Float[Tensor, "batch query_heads 1 head_dim"], seen: SeenTokens, scoring: Scoring
) -> Float[Tensor, "batch 1 query_heads value_dim"]:
    """`fused_attention` of one new token over a whole layer, transposed: no part is picked, nothing is put together.

    A step of a small model takes tens of milliseconds over tens of layers, so what Python does once a layer counts.
    """
    group = seen.whole
    assert group is not None, "the caller asked whether it is served"
    rows, heads = query.shape[:2]
    own = query.to(torch.float32).contiguous().resolve_neg()
    out = own.new_empty((rows, 1, heads, group.values.dim))
    coded_out = _call(
        own,
        group,
        _segments(group.keys, group.keys.tile_side, seen.begin, seen.end),
        _segments(group.values, group.values.tile_side, seen.begin, seen.end),
        # With one token the two axes can change places.
        out.view(rows, heads, 1, group.values.dim),
        None if scoring.sinks is None else scoring.sinks.to(torch.float32).contiguous(),
        scoring,
        own_column=seen.end - 1,
    )
    if coded_out is not None:
        out += coded_out.view_as(out)
    for side in ("keys", "values"):
        seen.layer.was_read(seen.cohorts, side)
    return out.to(query.dtype)


def _attend(query: Tensor, part: AttendedPart, mask: Tensor | None, scoring: Scoring) -> Tensor:
    seen, group, padding = part.seen, part.group, part.cohort.padding
    begin, end = max(seen.begin, padding) - padding, max(seen.end, padding) - padding
    queries = query.shape[2]
    query = query.to(torch.float32).contiguous().resolve_neg()
    out = query.new_zeros((*query.shape[:3], group.values.dim))
    own = None if (new := part.new_tokens()) is None else _OwnPages(new, max(0, padding - seen.end), end)
    last = end + (own.tokens if own is not None else 0)
    if begin == last:
        return out
    keys_side, values_side = group.keys.tile_side, group.values.tile_side
    keys = _segments(group.keys, keys_side, begin, end)
    values = _segments(group.values, values_side, begin, end)
    if own is not None and own.tokens:
        keys.append(own.keys)
        values.append(own.values)
    if mask is not None:
        # Columns of the batch as tokens of these rows.
        first = max(0, padding - seen.begin)
        mask = part.mask(mask)[..., first:].contiguous().view(torch.uint8)
    sinks = None if scoring.sinks is None else scoring.sinks[part.query_heads].to(torch.float32).contiguous()
    coded_out = _call(query, group, keys, values, out, sinks, scoring, own_column=last - queries, mask=mask)
    if coded_out is not None:
        out += coded_out
    return out


def _call(
    query: Tensor,
    group: StoredHeads,
    keys: list[Any],
    values: list[Any],
    out: Tensor,
    sinks: Tensor | None,
    scoring: Scoring,
    *,
    own_column: int,
    mask: Tensor | None = None,
) -> Tensor | None:
    """Fill `out` `[rows, query_heads, queries, value_dim]`; returns what is to be added, of values in a basis."""
    keys_basis, values_basis = group.keys.tile_side.basis, group.values.tile_side.basis
    coded_out = None if values_basis is None else torch.zeros_like(out)
    native_module().attend(
        query=query.numpy(),
        coded_query=None if keys_basis is None else (query @ keys_basis).numpy(),
        keys=keys,
        values=values,
        out=out.numpy(),
        coded_out=None if coded_out is None else coded_out.numpy(),
        kv_heads=group.keys.kv_heads,
        scaling=scoring.scaling,
        softcap=scoring.softcap or 0.0,
        sinks=None if sinks is None else sinks.numpy(),
        own_column=own_column,
        mask=None if mask is None else mask.numpy(),
        threads=torch.get_num_threads(),
        instruction_set=instruction_set(),
    )
    if coded_out is None:
        return None
    assert values_basis is not None, "sums are apart for the basis"
    return coded_out @ values_basis.T


def _segments(store: SideStore, side: TileSide, begin: int, end: int) -> list[Any]:
    return [_segment(part, side) for part in store.page_parts(begin, end)]


def _segment(part: PagePart, side: TileSide) -> Any:
    addresses = part.rows.pool.addresses(part.rows.table)
    assert addresses is not None, "the call has no obstacle, so pages stay in memory"
    formats = {"sinks": side.sinks, "coded": side.coded, "tail": side.tail}
    return native_module().Segment(
        format=formats[part.kind],
        pages=addresses,
        start=part.start,
        begin=part.begin,
        end=part.end,
        head_scale=side.head_scale if part.kind == "coded" else None,
    )


class _OwnPages:
    """The call's own tokens as pages of floats, which it keeps alive."""

    def __init__(self, new: NewTokens, skip: int, begin: int) -> None:
        """From the token after the first `skip` ones, which are padding of these rows; it stands in column `begin`."""
        keys, values = (each[:, :, skip:].to(torch.float32) for each in new)
        self.tokens = keys.shape[2]
        self.keys, self._keys_memory = self._paged(keys, "keys", begin)
        self.values, self._values_memory = self._paged(values, "values", begin)

    def _paged(self, states: Tensor, side: Side, begin: int) -> tuple[Any, Tensor]:
        rows, heads, tokens, dim = states.shape
        layout = exact_page_layout("float32", heads, dim, side, TAIL_PAGE_TOKENS)
        pages = -(-tokens // TAIL_PAGE_TOKENS)
        padded = states.new_zeros((rows, heads, pages, TAIL_PAGE_TOKENS, dim))
        padded.view(rows, heads, pages * TAIL_PAGE_TOKENS, dim)[:, :, :tokens] = states
        order = layout.regions[0].order
        if order is not None:
            padded = padded.transpose(3, 4)
        memory = padded.transpose(1, 2).contiguous()
        step = heads * TAIL_PAGE_TOKENS * dim * memory.element_size()
        addresses = memory.data_ptr() + step * np.arange(rows * pages, dtype=np.int64).reshape(rows, pages)
        segment = native_module().Segment(
            format=float_format("float32", layout, dim),
            pages=addresses,
            start=begin,
            begin=begin,
            end=begin + tokens,
            head_scale=None,
        )
        return segment, memory
