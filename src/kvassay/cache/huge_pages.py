"""Asks the system to back large memory with large pages, so that reading a cache does not wait for page tables.

A step reads every page of a cache once, one tile of each; with pages of 4 KiB each tile is a miss of the table that
translates addresses. Linux gives pages of 2 MiB to memory that asks for them (transparent_hugepage = madvise or always)
before it is first written. Nothing else changes: not what is allocated, and not what it holds.
"""

from __future__ import annotations

import ctypes
import sys

from torch import Tensor

HUGE_NBYTES = 2 << 20
_MADV_HUGEPAGE = 14


def ask_for_huge_pages(memory: Tensor) -> None:
    """Of the part of a new tensor in main memory that is whole large pages; nothing where there is none."""
    if sys.platform != "linux" or memory.device.type != "cpu":
        return
    begin = -(-memory.data_ptr() // HUGE_NBYTES) * HUGE_NBYTES
    end = (memory.data_ptr() + memory.untyped_storage().nbytes()) // HUGE_NBYTES * HUGE_NBYTES
    if begin < end:
        # An answer of no (a kernel without them) leaves small pages, which serve too.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_HUGEPAGE)
