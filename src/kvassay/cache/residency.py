"""Residency: which slabs of offloaded pools stay in memory under one limit, and what moving the others costs.

The policy and why it is not "least recently used" stand in docs/design/offload.md: every decode step reads every page
once, layer by layer, so any fixed set of resident pages moves as little as is possible, and the set is spread so that
each layer streams equally much, which the reading ahead can then hide behind the layer before.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.page_backing import Backing, read_pages
from kvassay.cache.slab_storage import page_memory
from kvassay.errors import CacheStateError

CHUNK_NBYTES = 1 << 20
"""Offloaded pages that no reading ahead fetched come in by so many bytes at a time, through one buffer."""


class Traffic:
    """What was moved, counted by two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes_out = self.nbytes_in = 0
        self.seconds_out = self.seconds_in = self.seconds_waited = 0.0
        self.hits = self.misses = 0

    def moved_in(self, nbytes: int, seconds: float) -> None:
        with self._lock:
            self.nbytes_in += nbytes
            self.seconds_in += seconds

    def read(self, backing: Backing, begins: NDArray[np.int64], pages: Tensor) -> None:
        began = time.perf_counter()
        read_pages(backing, begins, pages)
        self.moved_in(pages.numel(), time.perf_counter() - began)

    def write(self, backing: Backing, begin: int, pages: Tensor) -> None:
        began = time.perf_counter()
        backing.write(begin, pages)
        self.seconds_out += time.perf_counter() - began
        self.nbytes_out += pages.numel()


class Member(Protocol):
    """A pool's storage, as its residency sees it."""

    layer: int
    serial: int

    def victim(self, cold: bool) -> int | None:
        """A slab in memory that may go; with `cold`, only one that nobody is about to write."""
        ...

    def evict(self, number: int) -> None:
        """Raises OSError with the slab still in memory."""
        ...

    def drop_ahead(self) -> None: ...


class Residency:
    """Bytes in memory of all pools that share one limit: slabs, the buffer of misses, and pages read ahead."""

    def __init__(self, limit_nbytes: int, backing: Backing, where: str, read_ahead: bool) -> None:
        self.limit_nbytes = limit_nbytes
        self.backing = backing
        self.traffic = Traffic()
        self.slab_nbytes = 0
        """In memory."""
        self.ahead_nbytes = 0
        self.allocated_nbytes = 0
        """All slabs, in memory or not."""
        self.peak_nbytes = 0
        self.away: Counter[int] = Counter()
        """Bytes that a layer streams."""
        self.members: WeakSet[Member] = WeakSet()
        self._chunk_nbytes = min(CHUNK_NBYTES, limit_nbytes // 4)
        self._where = where
        self._reads_ahead = read_ahead
        self._buffers: dict[torch.device, Tensor] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._failure: OSError | None = None

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the buffers through which misses come in."""
        return self._chunk_nbytes * max(1, len(self._buffers))

    @property
    def resident_nbytes(self) -> int:
        return self.slab_nbytes + self.chunk_nbytes * bool(self._buffers) + self.ahead_nbytes

    def join(self, member: Member, page_nbytes: int) -> None:
        self.members.add(member)
        if page_nbytes > self._chunk_nbytes:
            self._chunk_nbytes = page_nbytes
            self._buffers.clear()

    def leave(self, member: Member) -> None:
        self.members.discard(member)
        if not self.members:
            # Its thread ends once nobody holds it.
            self._executor = None
            self._buffers.clear()

    def reserve(self, nbytes: int) -> int:
        try:
            begin = self.backing.reserve(nbytes)
        except (OSError, MemoryError, RuntimeError) as error:
            raise CacheStateError(
                f"{self._where} has no room for {nbytes:,} more bytes of offloaded pages beside "
                f"{self.allocated_nbytes:,} ({error}); free some there or name another folder. The cache is as it was "
                "before this call"
            ) from error
        self.allocated_nbytes += nbytes
        return begin

    def release(self, begin: int, nbytes: int) -> None:
        self.backing.release(begin, nbytes)
        self.allocated_nbytes -= nbytes

    def check(self) -> None:
        """Try again to move out what could not be, and raise CacheStateError if it still cannot."""
        if self._failure is None:
            return
        self._failure = None
        self.make_room(0)
        if self._failure is not None:
            error = self._failure
            raise CacheStateError(
                f"pages cannot be moved to {self._where} ({error}), so {self.resident_nbytes:,} bytes are in memory "
                f"where {self.limit_nbytes:,} are allowed; mend that, or reset() the cache. The cache is as it was "
                "before this call"
            ) from error

    def has_room(self, nbytes: int) -> bool:
        """Whether a slab fits without another's leaving."""
        return self.slab_nbytes + nbytes <= self._room_for_slabs()

    def make_room(self, nbytes: int) -> None:
        """Move slabs out until so many bytes more are within the limit: cold ones, and open ones if that is not enough.

        Nothing is lost where that fails: what cannot be moved stays in memory, and the next `check` raises.
        """
        while self.slab_nbytes + nbytes > self._room_for_slabs() and self._evict_one(cold=True):
            pass
        if self.ahead_nbytes and self.slab_nbytes + nbytes + self.chunk_nbytes + self.ahead_nbytes > self.limit_nbytes:
            for member in list(self.members):
                member.drop_ahead()
        while self.slab_nbytes + nbytes + self.chunk_nbytes > self.limit_nbytes and self._evict_one(cold=False):
            pass

    def entered(self, nbytes: int) -> None:
        """A slab of so many bytes is in memory now."""
        self.slab_nbytes += nbytes
        self.note_peak()

    def note_peak(self) -> None:
        self.peak_nbytes = max(self.peak_nbytes, self.resident_nbytes)

    def buffer(self, device: torch.device, page_nbytes: int) -> Tensor:
        """`[n, page_nbytes]`, whose bytes are good until the next call."""
        if device not in self._buffers:
            self._buffers[device] = page_memory(self._chunk_nbytes, device=device)
            self.note_peak()
        count = self._chunk_nbytes // page_nbytes
        return self._buffers[device][: count * page_nbytes].view(count, page_nbytes)

    def read(self, begins: NDArray[np.int64], pages: Tensor) -> None:
        """Fill `pages` while the caller waits."""
        began = time.perf_counter()
        try:
            self.traffic.read(self.backing, begins, pages)
        except OSError as error:
            raise self._unreadable(error) from error
        self.traffic.seconds_waited += time.perf_counter() - began

    def ahead_room(self) -> int:
        """Bytes that may be read ahead now."""
        if not self._reads_ahead:
            return 0
        return max(0, self.limit_nbytes - self.chunk_nbytes - self.slab_nbytes - self.ahead_nbytes)

    def start_reading(self, begins: NDArray[np.int64], pages: Tensor) -> Future[None]:
        """Fill `pages` in the second thread."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="kvassay-read-ahead")
        self.ahead_nbytes += pages.numel()
        self.note_peak()
        return self._executor.submit(self.traffic.read, self.backing, begins, pages)

    def await_read(self, reading: Future[None]) -> None:
        """Wait for the second thread; what went wrong there is raised here."""
        began = time.perf_counter()
        try:
            reading.result()
        except OSError as error:
            raise self._unreadable(error) from error
        self.traffic.seconds_waited += time.perf_counter() - began

    def write(self, begin: int, pages: Tensor) -> None:
        self.traffic.write(self.backing, begin, pages)

    def _room_for_slabs(self) -> int:
        """What the buffers leave: that of misses, and a layer read ahead, for which at most half the limit is kept."""
        ahead = min(self.limit_nbytes // 2, max(self.away.values(), default=0)) if self._reads_ahead else 0
        return self.limit_nbytes - self.chunk_nbytes - max(ahead, self.ahead_nbytes)

    def _evict_one(self, cold: bool) -> bool:
        """Move out one slab of the layer that streams least. False where there is none, or it cannot be moved."""
        found = [(member, number) for member in self.members if (number := member.victim(cold)) is not None]
        if not found:
            return False
        member, number = min(found, key=lambda one: (self._rank(one[0]), -one[0].layer, one[0].serial))
        try:
            member.evict(number)
        except OSError as error:
            self._failure = error
            return False
        return True

    def _rank(self, member: Member) -> int:
        """Who loses a slab first: the lowest."""
        return self.away[member.layer]

    def _unreadable(self, error: OSError) -> CacheStateError:
        return CacheStateError(
            f"offloaded pages cannot be read back from {self._where} ({error}), so tokens of this cache are lost; "
            "reset() it, or make one on a sound disk, and run the prompt again"
        )
