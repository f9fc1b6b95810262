"""Memory that the system backs with large pages, so that reading a cache does not wait for page tables.

A step reads every page of a cache once, one tile of each; with pages of 4 KiB each tile is a miss of the table that
translates addresses. Linux gives pages of 2 MiB (transparent_hugepage = madvise or always) to memory that asks for them
before it is first written. Memory of the process's heap will not do: most of it has been written before, and keeps its
small pages. So large slabs are mappings of their own. What is written beyond them is nothing: the mapping is longer, by
up to one large page in front, and takes address space there and no memory.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

HUGE_NBYTES = 2 << 20
MAPPED = "kvassay: mapped bytes "
"""Begins the name of a mark in a running profiler's record, before the number: its allocator does not see mappings."""


def huge_page_memory(nbytes: int) -> Tensor | None:
    """`[nbytes]` uint8 that begins on a large page, not yet written; None where the system has none to give, or so few
    bytes would not fill one."""
    if nbytes < HUGE_NBYTES or not (sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")):
        return None
    try:
        mapping = mmap.mmap(-1, nbytes + HUGE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError):
        return None
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    skip = -start % HUGE_NBYTES
    with suppress(OSError):  # a kernel without them leaves small pages, which serve too
        mapping.madvise(mmap.MADV_HUGEPAGE, skip, nbytes // HUGE_NBYTES * HUGE_NBYTES)
    with record_function(f"{MAPPED}{nbytes}"):
        pass
    with torch.inference_mode(False):
        return torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes, offset=skip)
