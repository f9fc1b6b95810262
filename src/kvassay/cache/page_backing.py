"""Where offloaded pages lie: one unlinked file, or host memory beside a device's.

Both hand out ranges of bytes by their begin. A range is reserved before it is needed, so that moving pages out cannot
fail for want of room. A file is read and written through calls, never mapped: a mapped file that shrinks, or whose disk
fails, ends the process with SIGBUS where a call raises OSError; its pages count as the process's memory; and a page
fault holds the interpreter's lock where a read lets the other thread go on.
"""

from __future__ import annotations

import os
import tempfile
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvassay.cache.slab_storage import page_memory

if TYPE_CHECKING:
    from typing_extensions import Buffer

HOST_GAP = 64
"""Bytes of number space between ranges of host memory, so that no run of pages reaches from one into the next."""

ZEROS_NBYTES = 1 << 20
"""Bytes written at once where a file system cannot reserve without writing."""


class Backing(Protocol):
    """Ranges of bytes outside the pool's memory. `read` may run in a second thread."""

    def reserve(self, nbytes: int) -> int:
        """Begin of a range of so many bytes. Raises OSError or MemoryError where there is no room."""
        ...

    def release(self, begin: int, nbytes: int) -> None: ...

    def write(self, begin: int, pages: Tensor) -> None:
        """`pages` `[n, page_nbytes]` uint8, contiguous, into a reserved range."""
        ...

    def read(self, begin: int, pages: Tensor) -> None:
        """Fill `pages`, contiguous, from within a reserved range."""
        ...


class FreeRanges:
    """Which bytes below `end` are free; neighbours are joined."""

    def __init__(self) -> None:
        self.end = 0
        """Bytes from here on were never given out, or came back."""
        self._begins: list[int] = []
        self._ends: list[int] = []

    def take(self, nbytes: int) -> int | None:
        """The first free range that is long enough; None where only the end has room."""
        for index, begin in enumerate(self._begins):
            if self._ends[index] - begin >= nbytes:
                self._begins[index] += nbytes
                if self._begins[index] == self._ends[index]:
                    del self._begins[index], self._ends[index]
                return begin
        return None

    def give(self, begin: int, nbytes: int) -> None:
        index = bisect_left(self._begins, begin)
        end = begin + nbytes
        if index < len(self._begins) and self._begins[index] == end:
            end = self._ends.pop(index)
            del self._begins[index]
        if index and self._ends[index - 1] == begin:
            index -= 1
            begin = self._begins.pop(index)
            del self._ends[index]
        if end == self.end:
            self.end = begin
        else:
            self._begins.insert(index, begin)
            self._ends.insert(index, end)


class FileBacking:
    """One file without a name: the system frees it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where no file can be made in `folder`."""
        # It lives as long as this object does.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._ranges = FreeRanges()

    def fileno(self) -> int:
        return self._file.fileno()

    def reserve(self, nbytes: int) -> int:
        begin = self._ranges.take(nbytes)
        if begin is None:
            begin = self._ranges.end
            try:
                self._grow(begin, nbytes)
            except OSError:
                os.ftruncate(self.fileno(), begin)
                raise
            self._ranges.end = begin + nbytes
        return begin

    def release(self, begin: int, nbytes: int) -> None:
        end = self._ranges.end
        self._ranges.give(begin, nbytes)
        # Where cache and file are collected together, the file may have been closed first.
        if self._ranges.end < end and not self._file.closed:
            os.ftruncate(self.fileno(), self._ranges.end)

    def write(self, begin: int, pages: Tensor) -> None:
        rest = _bytes_of(pages.cpu())
        while rest:
            done = os.pwrite(self.fileno(), rest, begin)
            rest, begin = rest[done:], begin + done

    def read(self, begin: int, pages: Tensor) -> None:
        cuda = pages.device.type == "cuda"
        target = pages if pages.device.type == "cpu" else torch.empty(pages.shape, dtype=torch.uint8, pin_memory=cuda)
        rest = _bytes_of(target)
        while rest:
            done = os.preadv(self.fileno(), [rest], begin)
            if not done:
                raise OSError(f"the file of offloaded pages ends {len(rest)} bytes early")
            rest, begin = rest[done:], begin + done
        if target is not pages:
            pages.copy_(target)

    def _grow(self, begin: int, nbytes: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.fileno(), begin, nbytes)
            return
        for low in range(begin, begin + nbytes, ZEROS_NBYTES):
            rest = memoryview(bytes(min(ZEROS_NBYTES, begin + nbytes - low)))
            while rest:
                done = os.pwrite(self.fileno(), rest, low)
                rest, low = rest[done:], low + done


class HostBacking:
    """Host memory, page-locked for a CUDA device so that copies need no second buffer."""

    def __init__(self, device: torch.device) -> None:
        self._lock = threading.Lock()
        self._pinned = device.type == "cuda"
        self._begins: list[int] = []
        self._ranges: list[Tensor] = []
        self._end = 0

    def reserve(self, nbytes: int) -> int:
        memory = page_memory(nbytes, zeroed=True, pinned=self._pinned)
        with self._lock:
            begin = self._end
            self._ranges.append(memory)
            self._begins.append(begin)
            self._end += nbytes + HOST_GAP
        return begin

    def release(self, begin: int, nbytes: int) -> None:
        with self._lock:
            index = bisect_left(self._begins, begin)
            del self._begins[index], self._ranges[index]

    def write(self, begin: int, pages: Tensor) -> None:
        self._range(begin, pages.numel()).copy_(pages.view(-1))

    def read(self, begin: int, pages: Tensor) -> None:
        pages.view(-1).copy_(self._range(begin, pages.numel()))

    def _range(self, begin: int, nbytes: int) -> Tensor:
        with self._lock:
            index = bisect_right(self._begins, begin) - 1
            skip = begin - self._begins[index]
            return self._ranges[index][skip : skip + nbytes]


def _bytes_of(pages: Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, not copied."""
    return memoryview(cast("Buffer", pages.view(-1).numpy()))


def read_pages(backing: Backing, begins: NDArray[np.int64], pages: Tensor) -> None:
    """Fill `pages` `[n, page_nbytes]` from `begins`, ascending; pages that lie beside each other take one call."""
    bounds = np.flatnonzero(np.diff(begins) != pages.shape[1]) + 1
    for low, high in zip([0, *bounds], [*bounds, len(begins)], strict=True):
        backing.read(int(begins[low]), pages[low:high])
