"""Where an array's rows lie in slabs of memory, as views that put them in order.

A view's last three axes are `[groups, together, units]`: tokens `groups * together`, each of `units` (`TileOrder`), as
integers of a unit's size. An array without an order has one row a block, bytes as units, and `together` is 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.core.paging import PageLayout, Region

_UNIT_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class RowShape(NamedTuple):
    """How the rows of an array stand in one head's part of a page."""

    rows_per_block: int
    groups: int
    together: int
    units: int
    unit_nbytes: int

    @property
    def dtype(self) -> torch.dtype:
        return _UNIT_DTYPES[self.unit_nbytes]


def row_shape(layout: PageLayout, region: Region) -> RowShape:
    if region.order is None:
        return RowShape(1, layout.blocks, 1, region.block_nbytes, 1)
    together, unit_nbytes = region.order
    units = region.block_nbytes // layout.block_tokens // unit_nbytes
    return RowShape(layout.block_tokens, layout.tokens // together, together, units, unit_nbytes)


def as_rows(shape: RowShape, blocks: Tensor) -> Tensor:
    """`[..., blocks, block_nbytes]` of bytes as `[..., rows, units]`."""
    if shape.rows_per_block == 1 and blocks.stride(-1) == 1:
        return blocks.view(shape.dtype)  # no copy: what is written may be a part of a longer array
    rows = blocks.shape[-2] * shape.rows_per_block
    return blocks.contiguous().reshape(*blocks.shape[:-2], rows, -1).view(shape.dtype)


def as_blocks(shape: RowShape, rows: Tensor) -> Tensor:
    """`[..., rows, units]` as `[..., blocks, block_nbytes]` of bytes."""
    raw = rows.contiguous().view(torch.uint8)
    return raw.reshape(*raw.shape[:-2], raw.shape[-2] // shape.rows_per_block, -1)


class ColumnRun(NamedTuple):
    """Columns of a block table whose pages follow each other in one slab, the rows at equal distances."""

    slab: int
    place: int
    """Of the first row's first page."""
    row_step: int
    columns: int


def column_runs(slabs: NDArray[np.int32], places: NDArray[np.int32]) -> list[ColumnRun] | None:
    """Pages `[rows, columns]` as few runs; None where rows of a column lie in several slabs or unevenly.

    A prefill is one run, and each column that decoding adds is another.
    """
    rows, columns = slabs.shape
    if not slabs.size:
        return None
    steps = np.zeros(columns, np.int32)
    if rows > 1:
        distances = np.diff(places, axis=0)
        steps = distances[0]
        if (slabs != slabs[:1]).any() or (distances != steps).any() or (steps < 0).any():
            return None
    bounds = [0, columns]
    if columns > 1:
        breaks = (np.diff(slabs[0]) != 0) | (np.diff(places[0]) != 1) | (np.diff(steps) != 0)
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), columns]
    return [
        ColumnRun(int(slabs[0, low]), int(places[0, low]), int(steps[low]), high - low)
        for low, high in pairwise(bounds)
    ]


def run_view(layout: PageLayout, slab: Tensor, region: Region, run: ColumnRun, rows: int) -> Tensor:
    """`[rows, heads, columns, groups, together, units]` of one array."""
    shape = row_shape(layout, region)
    heads, tile = (1, 0) if region.shared else (layout.kv_heads, layout.tile_nbytes)
    page = layout.nbytes // shape.unit_nbytes
    typed = slab.view(shape.dtype)
    return typed.as_strided(
        (rows, heads, run.columns, shape.groups, shape.together, shape.units),
        (run.row_step * page, tile // shape.unit_nbytes, page, shape.units * shape.together, 1, shape.together),
        typed.storage_offset() + run.place * page + region.offset // shape.unit_nbytes,
    )


def slab_view(layout: PageLayout, slab: Tensor, region: Region) -> Tensor:
    """`[pages, heads, groups, together, units]` of one array."""
    shape = row_shape(layout, region)
    nbytes = layout.blocks * region.block_nbytes
    if region.shared:
        part = slab[:, None, region.offset : region.offset + nbytes]
    else:
        tiles = slab[:, : layout.kv_heads * layout.tile_nbytes].unflatten(1, (layout.kv_heads, layout.tile_nbytes))
        part = tiles[:, :, region.offset : region.offset + nbytes]
    return part.view(shape.dtype).unflatten(2, (shape.groups, shape.units, shape.together)).transpose(3, 4)


class RowsPart(NamedTuple):
    """Rows that are a rectangle of `[groups, together]`."""

    groups: slice
    together: slice
    rows: slice
    """Which of the rows that are written these are."""


def row_parts(shape: RowShape, begin: int, end: int) -> Iterator[RowsPart]:
    """Rows `begin` to `end - 1` of a page: the rest of a group, whole groups, the begin of a group."""
    together, at = shape.together, begin
    while at < end:
        group, place = divmod(at, together)
        if place or end - at < together:
            stop = min(end, (group + 1) * together)
            yield RowsPart(slice(group, group + 1), slice(place, place + stop - at), slice(at - begin, stop - begin))
        else:
            groups = (end - at) // together
            stop = at + groups * together
            yield RowsPart(slice(group, group + groups), slice(0, together), slice(at - begin, stop - begin))
        at = stop
