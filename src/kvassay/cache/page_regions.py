"""Where an array's blocks lie in slabs of memory, as views."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvassay.core.paging import PageLayout, Region


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
    """`[rows, heads, columns, blocks, block_nbytes]` of one array."""
    heads, tile = (1, 0) if region.shared else (layout.kv_heads, layout.tile_nbytes)
    return slab.as_strided(
        (rows, heads, run.columns, layout.blocks, region.block_nbytes),
        (run.row_step * layout.nbytes, tile, layout.nbytes, region.block_nbytes, 1),
        slab.storage_offset() + run.place * layout.nbytes + region.offset,
    )


def slab_view(layout: PageLayout, slab: Tensor, region: Region) -> Tensor:
    """`[pages, heads, blocks, block_nbytes]` of one array."""
    nbytes = layout.blocks * region.block_nbytes
    if region.shared:
        part = slab[:, None, region.offset : region.offset + nbytes]
    else:
        tiles = slab[:, : layout.kv_heads * layout.tile_nbytes].unflatten(1, (layout.kv_heads, layout.tile_nbytes))
        part = tiles[:, :, region.offset : region.offset + nbytes]
    return part.unflatten(2, (layout.blocks, region.block_nbytes))
