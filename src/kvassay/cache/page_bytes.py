"""Bytes of pages for files and stores: what is held, and zero everywhere else.

A page keeps what a crop or a window has left behind until it is overwritten, and it has gaps for alignment. Neither
belongs to the tokens, so both leave as zeros: equal tokens have equal bytes, and nothing forgotten is handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.page_pool import PageIds, PagePool
from kvassay.cache.paged_rows import PagedRows

CHUNK_NBYTES = 4 << 20
"""Bytes of pages that are worked on at once."""

FilledBlocks = NDArray[np.bool_]
"""`[pages, blocks]`: True where a block of a page holds tokens that someone still reads."""


def filled_blocks(pool: PagePool, pages: PageIds, parts: Sequence[PagedRows]) -> FilledBlocks:
    """Which blocks of `pages` hold tokens of `parts`, which lie in `pool`; of a shared page, those anyone reads."""
    place = np.full(int(pages.max(initial=-1)) + 1, -1, np.int64)
    place[pages] = np.arange(len(pages))
    filled = np.zeros((len(pages), pool.layout.blocks), bool)
    for part in parts:
        for column, blocks in enumerate(part.block_ranges()):
            filled[place[part.table[:, column]], blocks.start : blocks.stop] = True
    return filled


def page_chunks(pool: PagePool, pages: PageIds, nbytes: int = CHUNK_NBYTES) -> Iterator[slice]:
    """`pages` in pieces of about `nbytes`, at least one page each."""
    step = max(1, nbytes // max(1, pool.layout.nbytes))
    for low in range(0, len(pages), step):
        yield slice(low, min(low + step, len(pages)))


def written_bytes(pool: PagePool, pages: PageIds, filled: FilledBlocks) -> Iterator[Tensor]:
    """Bytes of pages in pieces `[n, page_nbytes]`, zero where nothing is held."""
    clean = PagePool(pool.layout, pool.device)
    for chunk in page_chunks(pool, pages):
        chosen, held = pages[chunk], torch.from_numpy(filled[chunk]).to(pool.device)
        copies = clean.allocate(len(chosen))  # all bytes zero
        for region in pool.layout.regions:
            blocks = pool.read(region, chosen[:, None])
            clean.write(region, copies[:, None], 0, blocks * held[:, None, :, None])
        yield clean.raw(copies)
        clean.release(copies)


def array_with_a_nonfinite_value(pool: PagePool, pages: PageIds, filled: FilledBlocks) -> str | None:
    """Name of the first array that holds NaN or infinity in a filled block of `pages`; None where all are finite."""
    for chunk in page_chunks(pool, pages):
        held = torch.from_numpy(filled[chunk]).to(pool.device)
        for region in pool.layout.regions:
            dtype = getattr(torch, region.stream.dtype)
            if not dtype.is_floating_point:
                continue
            values = pool.read(region, pages[chunk][:, None]).contiguous().view(dtype)
            unusable = ~torch.isfinite(values.to(torch.float32)) & held[:, None, :, None]
            if bool(unusable.any()):
                return region.stream.name
    return None
