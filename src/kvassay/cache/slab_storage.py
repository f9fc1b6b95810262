"""Where the slabs of a page pool lie: what a pool asks of that place, and the plain answer, which is memory.

A slab is some pages beside each other. A pool knows which slab and which place in it a page has; the storage knows
where the slab's bytes are at the moment. `offloaded_slabs` is the other storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.huge_pages import huge_page_memory


def page_memory(*shape: int, device: torch.device | None = None, zeroed: bool = False, pinned: bool = False) -> Tensor:
    """uint8 memory that outlives the call which takes it.

    Never an inference tensor, whatever mode the caller is in: torch refuses to write to one outside `inference_mode`,
    so a prompt run inside could not be continued outside.
    """
    with torch.inference_mode(False):
        make = torch.zeros if zeroed else torch.empty
        return make(shape, dtype=torch.uint8, device=device, pin_memory=pinned)


class SlabPart(NamedTuple):
    """Some pages of one slab, out of those that a caller asked for."""

    number: int
    places: NDArray[np.int64]
    """In the slab."""
    picked: NDArray[np.int64]
    """In the caller's list, ascending."""


class FoundPages(NamedTuple):
    """Bytes of some pages that a caller asked for."""

    pages: Tensor
    """`[n, page_nbytes]` uint8; it may hold others too, and is only good until the next call of the storage."""
    places: NDArray[np.int64]
    """Rows of `pages`."""
    picked: NDArray[np.int64]
    """In the caller's list, ascending."""


class SlabStorage(Protocol):
    """Slabs of one pool."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Slabs that lie in the pool's memory now, `[pages, page_nbytes]` uint8 each."""
        ...

    @property
    def most_pages(self) -> int | None:
        """The longest slab it takes; None for any."""
        ...

    def add(self, number: int, pages: int) -> None:
        """Take room for a slab. Raises CacheStateError where there is none."""
        ...

    def drop(self, number: int) -> None: ...

    def clear(self, part: SlabPart) -> None:
        """Make these pages zero."""
        ...

    def read(self, parts: Iterable[SlabPart]) -> Iterator[FoundPages]: ...

    def write(self, part: SlabPart) -> Tensor:
        """The slab, in which these pages are then written; good until the next call of the storage."""
        ...

    def close(self, parts: Iterable[SlabPart]) -> None:
        """These pages are full, or free: nobody is about to write to them."""
        ...

    def read_ahead(self, parts: Iterable[SlabPart]) -> None:
        """These pages are read soon."""
        ...

    def drop_ahead(self) -> None:
        """What `read_ahead` named was read by now, or is not needed."""
        ...

    def check(self) -> None:
        """Raise CacheStateError for what went wrong unseen since the last call; called before anything changes."""
        ...


class MemorySlabs:
    """Every slab in the pool's memory."""

    most_pages = None

    def __init__(self, page_nbytes: int, device: torch.device) -> None:
        self._page_nbytes = page_nbytes
        self._device = device
        self._slabs: dict[int, Tensor] = {}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self._slabs.values())

    def slab(self, number: int) -> Tensor:
        return self._slabs[number]

    def addresses(self, numbers: NDArray[np.int32]) -> NDArray[np.int64]:
        """Where slabs begin in memory."""
        if len(self._slabs) == 1:
            return np.full(numbers.shape, next(iter(self._slabs.values())).data_ptr(), np.int64)
        # Nothing is kept: what a cache holds beside its pages is counted, and a function of its length.
        known = np.fromiter(self._slabs, np.int64, len(self._slabs))
        starts = np.fromiter(map(Tensor.data_ptr, self._slabs.values()), np.int64, len(self._slabs))
        # Slabs stand in rising order, since a number is never given twice.
        return starts[np.searchsorted(known, numbers)]

    def add(self, number: int, pages: int) -> None:
        backed = huge_page_memory(pages * self._page_nbytes) if self._device.type == "cpu" else None
        if backed is None:
            self._slabs[number] = page_memory(pages, self._page_nbytes, device=self._device)
        else:
            self._slabs[number] = backed.view(pages, self._page_nbytes)

    def drop(self, number: int) -> None:
        del self._slabs[number]

    def clear(self, part: SlabPart) -> None:
        slab, places = self._slabs[part.number], part.places
        if (np.diff(places) == 1).all():  # as fresh ones do; without an index it takes a tenth of the time
            slab[int(places[0]) : int(places[-1]) + 1].zero_()
        else:
            slab[torch.from_numpy(places).to(self._device)] = 0

    def read(self, parts: Iterable[SlabPart]) -> Iterator[FoundPages]:
        for part in parts:
            yield FoundPages(self._slabs[part.number], part.places, part.picked)

    def write(self, part: SlabPart) -> Tensor:
        return self._slabs[part.number]

    def close(self, parts: Iterable[SlabPart]) -> None:
        pass

    def read_ahead(self, parts: Iterable[SlabPart]) -> None:
        pass

    def drop_ahead(self) -> None:
        pass

    def check(self) -> None:
        pass
