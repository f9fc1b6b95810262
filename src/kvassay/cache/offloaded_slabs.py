"""OffloadedSlabs: the slabs of one pool, of which some lie outside its memory.

A slab is blank (reserved and never written, so it reads as zeros), in memory, or away, with its bytes in the backing.
Pages that are read from a slab that is away come through a buffer and do not make it resident, unless there is room to
spare; pages that are written bring their slab back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.residency import Residency
from kvassay.cache.slab_storage import FoundPages, SlabPart, page_memory

SLAB_NBYTES = 1 << 16
"""The longest slab: what is moved out at once."""

SLABS_IN_LIMIT = 256
"""A slab is no longer than the limit's 256th part (but one page), so that the slabs that are written leave room."""

_serials = count()


@dataclass
class _Slab:
    begin: int
    """In the backing."""
    pages: int
    tensor: Tensor | None = None
    stored: bool = False
    """The backing has these bytes."""
    open: set[int] = field(default_factory=set)
    """Places of pages that are being written."""


class _Ahead(NamedTuple):
    """Pages that the second thread reads or has read."""

    begins: NDArray[np.int64]
    """Ascending."""
    pages: Tensor
    reading: Future[None]
    taken: NDArray[np.bool_]


class OffloadedSlabs:
    """A `SlabStorage` under a residency's limit."""

    def __init__(self, residency: Residency, layer: int, page_nbytes: int, device: torch.device) -> None:
        self.layer = layer
        self.serial = next(_serials)
        self._residency = residency
        self._page_nbytes = page_nbytes
        self._device = device
        self._slabs: dict[int, _Slab] = {}
        self._cold: dict[int, None] = {}
        """Slabs in memory without an open page, the oldest first."""
        self._ahead: _Ahead | None = None
        longest = min(SLAB_NBYTES, residency.limit_nbytes // SLABS_IN_LIMIT)
        self.most_pages = max(1, longest // page_nbytes)
        residency.join(self, page_nbytes)

    def __del__(self) -> None:
        # The second thread may still fill what was asked for: it holds the arrays itself, and nobody reads them.
        if self._ahead is not None:
            self._residency.ahead_nbytes -= self._ahead.pages.numel()
        for number in list(self._slabs):
            self._forget(number)
        self._residency.leave(self)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(slab.tensor for slab in self._slabs.values() if slab.tensor is not None)

    def add(self, number: int, pages: int) -> None:
        self._slabs[number] = _Slab(self._residency.reserve(pages * self._page_nbytes), pages)

    def drop(self, number: int) -> None:
        self.drop_ahead()
        self._forget(number)

    def clear(self, part: SlabPart) -> None:
        slab = self._slabs[part.number]
        if slab.tensor is not None or slab.stored:
            self.write(part)[torch.from_numpy(part.places).to(self._device)] = 0

    def read(self, parts: Iterable[SlabPart]) -> Iterator[FoundPages]:
        away: list[SlabPart] = []
        for part in parts:
            slab = self._slabs[part.number]
            if slab.tensor is None and slab.stored and self._residency.has_room(self._nbytes(slab)):
                self._bring_back(part.number)
            if slab.tensor is not None:
                yield FoundPages(slab.tensor, part.places, part.picked)
            elif slab.stored:
                away.append(part)
            else:
                zeros = page_memory(1, self._page_nbytes, device=self._device, zeroed=True)
                yield FoundPages(zeros, np.zeros_like(part.places), part.picked)
        if away:
            yield from self._read_away(away)

    def write(self, part: SlabPart) -> Tensor:
        slab = self._slabs[part.number]
        tensor = slab.tensor
        if tensor is None:
            self._residency.make_room(self._nbytes(slab))
            tensor = self._bring_back(part.number)
        if slab.stored:
            # What was read ahead of it is no longer so.
            self.drop_ahead()
            slab.stored = False
        slab.open.update(part.places.tolist())
        self._cold.pop(part.number, None)
        return tensor

    def close(self, parts: Iterable[SlabPart]) -> None:
        for part in parts:
            slab = self._slabs.get(part.number)
            if slab is not None and slab.open:
                slab.open.difference_update(part.places.tolist())
                if not slab.open and slab.tensor is not None:
                    self._cold[part.number] = None
        self._residency.make_room(0)

    def read_ahead(self, parts: Iterable[SlabPart]) -> None:
        self.drop_ahead()
        room = self._residency.ahead_room() // self._page_nbytes
        if not room:
            return
        begins = [self._begins(part) for part in parts if self._is_away(part.number)]
        if not begins:
            return
        wanted = np.unique(np.concatenate(begins))[:room]
        pages = page_memory(len(wanted), self._page_nbytes, device=self._device)
        reading = self._residency.start_reading(wanted, pages)
        self._ahead = _Ahead(wanted, pages, reading, np.zeros(len(wanted), np.bool_))

    def drop_ahead(self) -> None:
        """Forget what was read ahead; an error there is nobody's, since a miss reads the page again."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if not ahead.reading.cancel():
                wait([ahead.reading])
            self._residency.ahead_nbytes -= ahead.pages.numel()

    def check(self) -> None:
        self._residency.check()

    def victim(self, cold: bool) -> int | None:
        """The newest cold slab, or the oldest of any kind."""
        if cold:
            return next(reversed(self._cold), None)
        return next((number for number, slab in self._slabs.items() if slab.tensor is not None), None)

    def evict(self, number: int) -> None:
        slab = self._slabs[number]
        assert slab.tensor is not None, "a victim is in memory"
        if not slab.stored:
            self._residency.write(slab.begin, slab.tensor)
            slab.stored = True
        slab.tensor = None
        self._cold.pop(number, None)
        self._residency.slab_nbytes -= self._nbytes(slab)
        self._residency.away[self.layer] += self._nbytes(slab)

    def _read_away(self, parts: list[SlabPart]) -> Iterator[FoundPages]:
        begins = np.concatenate([self._begins(part) for part in parts])
        picked = np.concatenate([part.picked for part in parts])
        order = np.argsort(picked)
        picked = picked[order]
        # Rows may share pages: each is fetched once.
        wanted, place = np.unique(begins[order], return_inverse=True)
        hit = np.zeros(len(wanted), np.bool_)
        if self._ahead is not None:
            ahead = self._ahead
            row = np.minimum(np.searchsorted(ahead.begins, wanted), len(ahead.begins) - 1)
            hit = ahead.begins[row] == wanted
            if hit.any():
                self._await_ahead(ahead)
                chosen = np.flatnonzero(hit[place])
                yield FoundPages(ahead.pages, row[place[chosen]], picked[chosen])
                ahead.taken[row[hit]] = True
                if ahead.taken.all():
                    self.drop_ahead()
        traffic = self._residency.traffic
        traffic.hits += int(hit.sum())
        traffic.misses += int((~hit).sum())
        missed = np.flatnonzero(~hit)
        if not len(missed):
            return
        buffer = self._residency.buffer(self._device, self._page_nbytes)
        for low in range(0, len(missed), len(buffer)):
            some = missed[low : low + len(buffer)]
            self._residency.read(wanted[some], buffer[: len(some)])
            row = np.full(len(wanted), -1)
            row[some] = np.arange(len(some))
            chosen = np.flatnonzero(row[place] >= 0)
            yield FoundPages(buffer, row[place[chosen]], picked[chosen])

    def _await_ahead(self, ahead: _Ahead) -> None:
        try:
            self._residency.await_read(ahead.reading)
        except BaseException:
            self.drop_ahead()
            raise

    def _bring_back(self, number: int) -> Tensor:
        """The slab in memory, from the backing or as zeros."""
        slab = self._slabs[number]
        tensor = page_memory(slab.pages, self._page_nbytes, device=self._device, zeroed=not slab.stored)
        if slab.stored:
            self._residency.read(np.arange(slab.pages) * self._page_nbytes + slab.begin, tensor)
            self._residency.away[self.layer] -= self._nbytes(slab)
        slab.tensor = tensor
        if not slab.open:
            self._cold[number] = None
        self._residency.entered(self._nbytes(slab))
        return tensor

    def _forget(self, number: int) -> None:
        slab = self._slabs.pop(number)
        self._cold.pop(number, None)
        nbytes = self._nbytes(slab)
        if slab.tensor is not None:
            self._residency.slab_nbytes -= nbytes
        elif slab.stored:
            self._residency.away[self.layer] -= nbytes
        self._residency.release(slab.begin, nbytes)

    def _is_away(self, number: int) -> bool:
        slab = self._slabs[number]
        return slab.tensor is None and slab.stored

    def _begins(self, part: SlabPart) -> NDArray[np.int64]:
        """Of pages, in the backing."""
        return self._slabs[part.number].begin + part.places * self._page_nbytes

    def _nbytes(self, slab: _Slab) -> int:
        return slab.pages * self._page_nbytes
