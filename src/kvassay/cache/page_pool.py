"""PagePool: pages of one layout, counted by reference, in slabs that are never moved.

A page belongs to every sequence whose block table names it. It is written only while one sequence holds it; who shares
it takes a copy first (`paged_rows`). Nothing is ever reallocated: more pages are further slabs, together exactly as
long as the pages that are missing, and a slab whose pages are all free can be given back; its page numbers are given
out again. Where a slab's bytes lie is the affair of its storage (`slab_storage`): in memory, or for a part of the time
on disk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.native_rows import NativeRows
from kvassay.cache.page_regions import as_blocks, as_rows, column_runs, row_parts, row_shape, run_view, slab_view
from kvassay.cache.pool_lock import alone
from kvassay.cache.slab_storage import MemorySlabs, SlabPart, SlabStorage
from kvassay.core.paging import PAGE_RECORD_NBYTES, PageLayout, Region

PageIds = NDArray[np.int32]
"""Page numbers of a pool, any shape."""


class PagePool:
    """Pages of one side of one head group. Sequences of any number of caches may share it.

    Forks in different threads share pools too: which page is whose is decided by one thread at a time. A page's bytes
    need no lock, since they are written only while one sequence holds the page.
    """

    def __init__(
        self,
        layout: PageLayout,
        device: torch.device | str = "cpu",
        storage: SlabStorage | None = None,
        by_column: bool = False,
    ) -> None:
        self.layout = layout
        self.by_column = by_column
        """Each column of a block table has slabs of its own, and who releases pages trims: for pages that come and go
        at both ends of a sequence, all rows of a column together."""
        self.device = torch.device(device)
        self._storage: SlabStorage = MemorySlabs(layout.nbytes, self.device) if storage is None else storage
        self.lock = threading.RLock()
        self.depth = 0
        """Operations under way in the thread that is inside."""
        self.changes = 0
        """How often pages were taken, shared, given back or moved; what was worked out before is stale after."""
        self._given_up: deque[tuple[PageIds, bool]] = deque()
        """Of rows that were freed; not yet released."""
        self._native = NativeRows(layout)
        self._next_slab = 0
        self._references = np.zeros(0, np.int32)
        self._slab_of = np.zeros(0, np.int32)
        """Slab of each page; −1 for a number that has no page now."""
        self._place_of = np.zeros(0, np.int32)
        self._kept_numbers = 0
        self._may_trim = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("lock", "_given_up", "depth")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock, self._given_up, self.depth = threading.RLock(), deque(), 0

    @property
    def slabs(self) -> tuple[Tensor, ...]:
        """The real storages in memory, `[pages, page_nbytes]` uint8 each: of all pages but offloaded ones."""
        return self._storage.tensors

    @property
    def most_pages(self) -> int | None:
        """Pages of a sequence that are best written together; None for any number."""
        return self._storage.most_pages

    @property
    def num_pages(self) -> int:
        """Allocated pages, free and offloaded ones included."""
        return int(np.count_nonzero(self._slab_of >= 0))

    @property
    def num_free(self) -> int:
        return len(self._free_ids())

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, wherever they lie."""
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

    @alone
    def reserve(self, count: int, column: int | None = None) -> None:
        """Have at least `count` free pages, by slabs of `column` pages or in one.

        This, `hold` and `ensure` take memory; nothing else can fail for it.
        """
        missing = count - self.num_free
        for begin in range(0, missing, column or max(1, missing)):
            self._add_slab(min(column or missing, missing - begin))

    @alone
    def hold(self, count: int, column: int | None = None) -> PageIds:
        """`count` pages with one reference each, whatever they contain: nobody else can take them until `release`."""
        self.changes += 1
        self.reserve(count, column)
        pages = self._free_ids()[:count].astype(np.int32)
        self._references[pages] = 1
        return pages

    @alone
    def keep_numbers(self, count: int) -> None:
        """Have at least `count` page numbers, with or without a page."""
        self.changes += 1
        self._kept_numbers = count
        if (missing := count - len(self._references)) > 0:
            self._add_numbers(missing)

    @alone
    def ensure(self, count: int) -> None:
        """Have at least `count` pages in all."""
        self._storage.check()
        missing = count - self.num_pages
        if missing > 0:
            self._add_slab(missing)

    @alone
    def allocate(self, count: int) -> PageIds:
        """`count` pages with one reference each, all bytes zero."""
        pages = self.hold(count)
        for part in self._by_slab(pages):
            self._storage.clear(part)
        return pages

    @alone
    def retain(self, pages: PageIds) -> None:
        self.changes += 1
        np.add.at(self._references, pages.ravel(), 1)

    @alone
    def release(self, pages: PageIds) -> None:
        self.changes += 1
        np.subtract.at(self._references, pages.ravel(), 1)
        assert (self._references >= 0).all(), "a page is released once for each reference"
        free = pages.ravel()[self._references[pages.ravel()] == 0]
        self._may_trim |= bool(len(free))
        self.close(free)

    def give_up(self, pages: PageIds, trim: bool) -> None:
        """Release pages of rows that are being freed, at once or, in the middle of an operation, right after it.

        `trim` gives back slabs that are free then.

        Rows are freed at any moment, also by the garbage collector while this very pool picks pages that are free.
        """
        self._given_up.append((pages, trim))
        if self.lock.acquire(blocking=False):
            try:
                self.take_back()
            finally:
                self.lock.release()

    def take_back(self) -> None:
        """Release what was given up, unless an operation is under way."""
        while self._given_up and not self.depth:
            pages, trim = self._given_up.popleft()
            self.release(pages)
            if trim:
                self.trim()

    def close(self, pages: PageIds) -> None:
        """These pages are full in all arrays, or free. Only closed pages are cold; written ones are open until then."""
        self._storage.close(self._by_slab(np.asarray(pages).ravel()))

    def read_ahead(self, pages: PageIds) -> None:
        """Say which pages are read soon; a storage in memory has nothing to do."""
        self._storage.read_ahead(self._by_slab(pages.ravel()))

    def drop_ahead(self) -> None:
        """Say that what was to be read ahead was read."""
        self._storage.drop_ahead()

    @alone
    def addresses(self, pages: PageIds) -> NDArray[np.int64] | None:
        """Where each page begins in memory; None where pages do not stay in memory. Good until the pool changes."""
        if not isinstance(self._storage, MemorySlabs) or self.device.type != "cpu":
            return None
        starts = self._storage.addresses(self._slab_of[pages])
        return starts + self._place_of[pages].astype(np.int64) * self.layout.nbytes

    def step_arrays(self, pages: PageIds) -> list[Any] | None:
        """The arrays of one page a sequence, `[sequences]`, for appends of single rows; None where it takes more."""
        addresses = self._native_addresses(pages[:, None])
        if addresses is None or any(
            row_shape(self.layout, region).rows_per_block > 1 for region in self.layout.regions
        ):
            return None
        return [self._native.step_array(region, addresses) for region in self.layout.regions]

    def _native_addresses(self, pages: PageIds) -> NDArray[np.int64] | None:
        """Of pages that the compiled module can write and read."""
        return self.addresses(pages) if pages.size and self._native.is_there() else None

    @alone
    def trim(self) -> None:
        """Give back slabs whose pages are all free; it costs nothing where no page came free since the last time."""
        if not self._may_trim:
            return
        self.changes += 1
        self._may_trim = False
        gone = (self._slab_of >= 0) & ~np.isin(self._slab_of, self._slab_of[self._references > 0])
        for number in np.unique(self._slab_of[gone]):
            self._slab_of[self._slab_of == number] = -1
            self._storage.drop(int(number))
        used = np.flatnonzero(self._slab_of >= 0)
        end = max(self._kept_numbers, int(used[-1]) + 1 if len(used) else 0)
        if end < len(self._references):
            self._references, self._slab_of, self._place_of = (
                array[:end].copy() for array in (self._references, self._slab_of, self._place_of)
            )

    def copy(self, pages: PageIds) -> PageIds:
        """New pages with the same bytes; the old ones keep their references."""
        copies = self.allocate(len(pages))
        self._put(copies, self.raw(pages))
        return copies

    def raw(self, pages: PageIds) -> Tensor:
        """Bytes of some pages, a copy `[pages, page_nbytes]`."""
        found = torch.empty((len(pages), self.layout.nbytes), dtype=torch.uint8, device=self.device)
        for slab, places, picked in self._storage.read(self._by_slab(pages)):
            found[picked] = slab[self._on_device(places)]
        return found

    def put_raw(self, pages: PageIds, raw: Tensor) -> None:
        """Overwrite whole pages."""
        self._put(pages, raw)
        self.close(pages)

    def write(self, region: Region, pages: PageIds, first_block: int, blocks: Tensor) -> None:
        """Write one array's blocks `[rows, heads, n, block_nbytes]` into `pages` `[rows, k]`.

        The first block goes to place `first_block` of the first page; the last page may stay unfilled.
        """
        if (addresses := self._native_addresses(pages)) is not None:
            self._native.write(region, addresses, first_block, blocks)
            return
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
        return self.read_all((region,), pages)[0]

    def read_all(self, regions: Sequence[Region], pages: PageIds) -> list[Tensor]:
        """`read` of several arrays, for which each page is fetched once."""
        rows, count = pages.shape
        if (addresses := self._native_addresses(pages)) is not None:
            return [self._native.read(region, addresses) for region in regions]
        memory = self._storage if isinstance(self._storage, MemorySlabs) else None
        if memory is not None and (runs := column_runs(self._slab_of[pages], self._place_of[pages])):
            # No index is needed, and one operation puts all runs side by side.
            slabs = [memory.slab(run.slab) for run in runs]
            return [
                self._joined(
                    region,
                    torch.cat(
                        [run_view(self.layout, slab, region, run, rows) for slab, run in zip(slabs, runs, strict=True)],
                        dim=2,
                    ),
                )
                for region in regions
            ]
        ids = pages.ravel()
        shapes = [row_shape(self.layout, region) for region in regions]
        found = [
            torch.empty(
                (rows, region.stream.heads, count, shape.groups, shape.together, shape.units),
                dtype=shape.dtype,
                device=self.device,
            )
            for region, shape in zip(regions, shapes, strict=True)
        ]
        for slab, places, picked in self._storage.read(self._by_slab(ids)):
            row, column = torch.as_tensor(picked // count), torch.as_tensor(picked % count)
            for region, out in zip(regions, found, strict=True):
                # [rows, k, heads, ...] as a view of what is returned, so that one copy puts all in place.
                target = out.transpose(1, 2)
                stored = slab_view(self.layout, slab, region)[self._on_device(places)]
                if len(picked) == len(ids):
                    target.copy_(stored.unflatten(0, (rows, count)))
                else:
                    target[row, column] = stored
        return [self._joined(region, out) for region, out in zip(regions, found, strict=True)]

    def _joined(self, region: Region, rows: Tensor) -> Tensor:
        """`[rows, heads, columns, groups, together, units]` as `[rows, heads, blocks, block_nbytes]`."""
        return as_blocks(row_shape(self.layout, region), rows.flatten(2, 4))

    def _put(self, pages: PageIds, raw: Tensor) -> None:
        for part in self._by_slab(pages):
            self._storage.write(part)[self._on_device(part.places)] = raw[part.picked]

    def _scatter(self, region: Region, ids: PageIds, places: slice, part: Tensor) -> None:
        """`part` `[len(ids), heads, places, nbytes]` into the pages `ids`."""
        shape = row_shape(self.layout, region)
        begin = (places.start or 0) * shape.rows_per_block
        rows = as_rows(shape, part)
        pieces = list(row_parts(shape, begin, begin + rows.shape[2]))
        for target in self._by_slab(ids):
            source = rows if len(target.picked) == len(ids) else rows[torch.as_tensor(target.picked)]
            slab = slab_view(self.layout, self._storage.write(target), region)
            for piece in pieces:
                view = slab[:, :, piece.groups, piece.together]
                own = source[:, :, piece.rows].unflatten(2, (piece.groups.stop - piece.groups.start, -1))
                if len(ids) == 1:
                    view[int(target.places[0])] = own[0]
                else:
                    view[self._on_device(target.places)] = own

    def _by_slab(self, ids: PageIds) -> Iterator[SlabPart]:
        """Each slab that has some of them."""
        slabs = self._slab_of[ids]
        if len(slabs) and (slabs == slabs[0]).all():
            yield SlabPart(int(slabs[0]), self._place_of[ids].astype(np.int64), np.arange(len(ids)))
            return
        for number in np.unique(slabs):
            picked = np.flatnonzero(slabs == number)
            yield SlabPart(int(number), self._place_of[ids[picked]].astype(np.int64), picked)

    def _on_device(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(places).to(self.device)

    @alone
    def _free_ids(self) -> NDArray[np.int64]:
        return np.flatnonzero((self._references == 0) & (self._slab_of >= 0))

    @alone
    def _add_slab(self, count: int) -> None:
        """Pages in one slab, or in several where the storage takes only shorter ones."""
        self.changes += 1
        most = self._storage.most_pages or count
        for pages in (min(most, count - begin) for begin in range(0, count, most)):
            number, numbers = self._next_slab, np.flatnonzero(self._slab_of < 0)[:pages]
            self._storage.add(number, pages)
            missing = pages - len(numbers)
            numbers = np.append(numbers, np.arange(missing) + len(self._slab_of))
            references, slab_of, place_of = self._longer(missing)
            slab_of[numbers] = number
            place_of[numbers] = np.arange(pages, dtype=np.int32)
            # Together: an interrupt between them would leave other forks a pool whose arrays differ in length.
            self._next_slab, self._references, self._slab_of, self._place_of = number + 1, references, slab_of, place_of
            self._may_trim = True

    def _add_numbers(self, count: int) -> None:
        self._references, self._slab_of, self._place_of = self._longer(count)

    def _longer(self, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Copies of the arrays with room for `count` more numbers, which have no page."""
        zeros = np.zeros(count, np.int32)
        return (
            np.append(self._references, zeros),
            np.append(self._slab_of, zeros - 1),
            np.append(self._place_of, zeros),
        )
