"""PagePool: pages of one layout, counted by reference, in slabs that are never moved.

A page belongs to every sequence whose block table names it. It is written only while one sequence holds it; who shares
it takes a copy first (`paged_rows`). Nothing is ever reallocated: more pages are a further slab, exactly as long as the
pages that are missing, and a slab whose pages are all free can be given back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.core.paging import PAGE_RECORD_NBYTES, PageLayout, Region

PageIds = NDArray[np.int32]
"""Page numbers of a pool, any shape."""


class PagePool:
    """Pages of one side of one head group. Sequences of any number of caches may share it."""

    def __init__(self, layout: PageLayout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        self._slabs: dict[int, Tensor] = {}
        self._next_slab = 0
        self._references = np.zeros(0, np.int32)
        self._slab_of = np.zeros(0, np.int32)
        """Slab of each page; −1 for a number whose slab was given back."""
        self._place_of = np.zeros(0, np.int32)

    @property
    def slabs(self) -> tuple[Tensor, ...]:
        """The real storages, `[pages, page_nbytes]` uint8 each."""
        return tuple(self._slabs.values())

    @property
    def num_pages(self) -> int:
        """Allocated pages, free ones included."""
        return sum(slab.shape[0] for slab in self._slabs.values())

    @property
    def num_free(self) -> int:
        return len(self._free_ids())

    @property
    def nbytes(self) -> int:
        """Bytes of the slabs."""
        return self.num_pages * self.layout.nbytes

    @property
    def record_nbytes(self) -> int:
        """Bytes of what is kept beside the pages."""
        return len(self._references) * PAGE_RECORD_NBYTES

    @property
    def num_references(self) -> int:
        """References to all pages together."""
        return int(self._references.sum())

    def references(self, pages: PageIds) -> NDArray[np.int32]:
        return self._references[pages]

    def reserve(self, count: int) -> None:
        """Have at least `count` free pages; the only call that takes memory, so the only one that can fail for it."""
        missing = count - self.num_free
        if missing > 0:
            self._add_slab(missing)

    def ensure(self, count: int) -> None:
        """Have at least `count` pages in all."""
        missing = count - self.num_pages
        if missing > 0:
            self._add_slab(missing)

    def allocate(self, count: int) -> PageIds:
        """`count` pages with one reference each, all bytes zero."""
        self.reserve(count)
        pages = self._free_ids()[:count].astype(np.int32)
        self._references[pages] = 1
        for slab, chosen, _ in self._by_slab(pages):
            slab[chosen] = 0
        return pages

    def retain(self, pages: PageIds) -> None:
        np.add.at(self._references, pages.ravel(), 1)

    def release(self, pages: PageIds) -> None:
        np.subtract.at(self._references, pages.ravel(), 1)
        assert (self._references >= 0).all(), "a page is released once for each reference"

    def trim(self) -> None:
        """Give back slabs whose pages are all free."""
        for number in list(self._slabs):
            members = self._slab_of == number
            if not self._references[members].any():
                del self._slabs[number]
                self._slab_of[members] = -1
        used = np.flatnonzero(self._slab_of >= 0)
        end = int(used[-1]) + 1 if len(used) else 0
        self._references, self._slab_of, self._place_of = (
            array[:end].copy() for array in (self._references, self._slab_of, self._place_of)
        )

    def copy(self, pages: PageIds) -> PageIds:
        """New pages with the same bytes; the old ones keep their references."""
        copies = self.allocate(len(pages))
        raw = self.raw(pages)
        for slab, chosen, picked in self._by_slab(copies):
            slab[chosen] = raw[picked]
        return copies

    def raw(self, pages: PageIds) -> Tensor:
        """Bytes of some pages, a copy `[pages, page_nbytes]`."""
        found = torch.empty((len(pages), self.layout.nbytes), dtype=torch.uint8, device=self.device)
        for slab, chosen, picked in self._by_slab(pages):
            found[picked] = slab[chosen]
        return found

    def put_raw(self, pages: PageIds, raw: Tensor) -> None:
        """Overwrite whole pages."""
        for slab, chosen, picked in self._by_slab(pages):
            slab[chosen] = raw[picked]

    def write(self, region: Region, pages: PageIds, first_block: int, blocks: Tensor) -> None:
        """Write one array's blocks `[rows, heads, n, block_nbytes]` into `pages` `[rows, k]`.

        The first block goes to place `first_block` of the first page; the last page may stay unfilled.
        """
        in_page, count = self.layout.blocks, blocks.shape[2]
        head = min(count, in_page - first_block) if first_block else 0
        whole = (count - head) // in_page
        skipped = 1 if head else 0
        if head:
            self._scatter(region, pages[:, 0], slice(first_block, first_block + head), blocks[:, :, :head])
        if whole:
            part = blocks[:, :, head : head + whole * in_page].unflatten(2, (whole, in_page))
            ids = pages[:, skipped : skipped + whole].ravel()
            self._scatter(region, ids, slice(None), part.transpose(1, 2).flatten(0, 1))
        if rest := count - head - whole * in_page:
            self._scatter(region, pages[:, skipped + whole], slice(0, rest), blocks[:, :, count - rest :])

    def read(self, region: Region, pages: PageIds) -> Tensor:
        """Blocks of one array in `pages` `[rows, k]`: `[rows, heads, k * blocks, block_nbytes]`, a copy."""
        rows, count = pages.shape
        heads, in_page = region.stream.heads, self.layout.blocks
        ids = pages.ravel()
        out = torch.empty((rows, heads, count, in_page, region.block_nbytes), dtype=torch.uint8, device=self.device)
        # [rows, k, heads, blocks, nbytes] as a view of what is returned, so that one copy puts all in place.
        target = out.permute(0, 2, 1, 3, 4)
        if count and rows:
            for slab, chosen, picked in self._by_slab(ids):
                found = self._region(slab, region)[chosen]
                if len(self._slabs) == 1:
                    target.copy_(found.unflatten(0, (rows, count)))
                else:
                    row, column = torch.as_tensor(picked // count), torch.as_tensor(picked % count)
                    target[row, column] = found
        return out.flatten(2, 3)

    def _scatter(self, region: Region, ids: PageIds, places: slice, part: Tensor) -> None:
        """`part` `[len(ids), heads, places, nbytes]` into the pages `ids`."""
        for slab, chosen, picked in self._by_slab(ids):
            source = part if len(picked) == len(ids) else part[torch.as_tensor(picked)]
            view = self._region(slab, region)[:, :, places]
            if len(ids) == 1:
                view[int(chosen[0])] = source[0]
            else:
                view[chosen] = source

    def _region(self, slab: Tensor, region: Region) -> Tensor:
        """`[pages, heads, blocks, block_nbytes]`, a view."""
        layout = self.layout
        nbytes = layout.blocks * region.block_nbytes
        if region.shared:
            part = slab[:, None, region.offset : region.offset + nbytes]
        else:
            tiles = slab[:, : layout.kv_heads * layout.tile_nbytes].unflatten(1, (layout.kv_heads, layout.tile_nbytes))
            part = tiles[:, :, region.offset : region.offset + nbytes]
        return part.unflatten(2, (layout.blocks, region.block_nbytes))

    def _by_slab(self, ids: PageIds) -> Iterator[tuple[Tensor, Tensor, NDArray[np.int64]]]:
        """(slab, places in it, which of `ids`) for each slab that has some of them."""
        slabs = self._slab_of[ids]
        for number in np.unique(slabs) if len(self._slabs) > 1 else slabs[:1]:
            picked = np.flatnonzero(slabs == number)
            places = torch.from_numpy(self._place_of[ids[picked]].astype(np.int64)).to(self.device)
            yield self._slabs[int(number)], places, picked

    def _free_ids(self) -> NDArray[np.int64]:
        return np.flatnonzero((self._references == 0) & (self._slab_of >= 0))

    def _add_slab(self, count: int) -> None:
        slab = torch.empty((count, self.layout.nbytes), dtype=torch.uint8, device=self.device)
        self._slabs[self._next_slab] = slab
        self._references = np.append(self._references, np.zeros(count, np.int32))
        self._slab_of = np.append(self._slab_of, np.full(count, self._next_slab, np.int32))
        self._place_of = np.append(self._place_of, np.arange(count, dtype=np.int32))
        self._next_slab += 1
