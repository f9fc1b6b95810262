"""How many bytes of tensors a block of code holds at once: the transient peak beside what it leaves behind.

The instrument is the CPU allocator's own record, which torch's profiler keeps (`profile_memory`). It sees every block
that the allocator hands out on the calling thread, also the temporaries inside a kernel (softmax and scaled dot product
attention allocate some), which a `TorchDispatchMode` that watches the results of operators cannot.

Error. Sizes are those that were asked of the allocator, to the byte; its rounding to 64 bytes is left out. Tensors of
the block's own scalars count (4 to 16 bytes each). Slabs of a cache that are mappings of their own (`cache.huge_pages`)
count when they are made, and stay. Not seen: memory that no tensor of torch owns (numpy, Python
objects, mapped files, scratch of oneDNN and BLAS), other threads, and other devices (torch.cuda.max_memory_allocated
counts those). Freeing what was allocated before the block is not seen, so it is not set off against the peak: a cache
that copies itself seems to keep a whole copy. Run one step first and `count_from_here()`: then its release is seen.

A block that was allocated before and is freed inside makes torch write a line of warning to stderr; a process started
with TORCH_CPP_LOG_LEVEL=ERROR writes none.

Cost: a second for the first block of a process, then about 5 ms a block and 0.1 ms an operator: time other runs than
those whose memory is recorded.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch._C._profiler import _EventType
from torch.autograd import profiler

from kvassay.cache.huge_pages import MAPPED

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_QUIET = "6"
"""Above every level that kineto writes: it prints two lines on stderr for each start otherwise."""


class MemoryPeak(NamedTuple):
    """Bytes that the block's own tensors took. Memory from before the block is in none of these."""

    peak_nbytes: int
    """Most bytes alive at once."""
    kept_nbytes: int
    """Bytes still alive at the end; negative after `count_from_here` where more was freed than allocated."""
    total_nbytes: int
    """All bytes allocated, one after the other."""
    largest_nbytes: int
    """The largest single block."""
    allocations: int

    @property
    def transient_nbytes(self) -> int:
        """What the block needed beyond what it left behind."""
        return self.peak_nbytes - self.kept_nbytes


class MemoryWatch:
    """Handed out by `watch_memory`; `peak` exists once the block has ended."""

    def __init__(self) -> None:
        self._peak: MemoryPeak | None = None

    def count_from_here(self) -> None:
        """Take what is alive now as zero. What the block allocated so far and frees later counts as negative."""
        with profiler.record_function(_MARK):
            pass

    @property
    def peak(self) -> MemoryPeak:
        if self._peak is None:
            raise RuntimeError("the peak is read inside its block; expected after it, since the record ends there")
        return self._peak


_MARK = "kvassay: count memory from here"
_watching = False


@contextmanager
def watch_memory() -> Iterator[MemoryWatch]:
    """Record the CPU tensor memory of a block: `with watch_memory() as watch: ...`, then `watch.peak.peak_nbytes`.

    Raises RuntimeError inside another watch or another profiler, since torch has one record at a time. An error of the
    block is passed on, and the peak up to it can be read.
    """
    global _watching
    if _watching or _other_profiler():
        raise RuntimeError("memory is already being recorded; expected no profiler around: measure blocks in turn")
    watch = MemoryWatch()
    level = os.environ.get(_LOG_LEVEL)
    if level is None:
        os.environ[_LOG_LEVEL] = _QUIET  # read once, when kineto starts
    _watching = True
    record = profiler.profile(profile_memory=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a profiler's first cycle is its last
            record.__enter__()
        try:
            yield watch
        finally:
            record.__exit__(None, None, None)
            watch._peak = _peak(record)
    finally:
        _watching = False
        if level is None:
            os.environ.pop(_LOG_LEVEL, None)


def _other_profiler() -> bool:
    return bool(getattr(profiler, "_is_profiler_enabled", False))


def _peak(record: profiler.profile) -> MemoryPeak:
    """Replay the allocator's events in the order of time.

    By address, not by the running sum that each event carries: that sum also falls when memory of an earlier record
    is freed, which would hide as many bytes of this one.
    """
    alive: dict[int, int] = {}
    now = peak = total = largest = allocations = 0
    for event in sorted(_events(record), key=lambda event: event.start_time_ns):
        if event.name == _MARK:
            now = peak = total = largest = allocations = 0
            continue
        if event.name.startswith(MAPPED):
            nbytes = int(event.name.removeprefix(MAPPED))
            now, total, allocations = now + nbytes, total + nbytes, allocations + 1
            peak, largest = max(peak, now), max(largest, nbytes)
            continue
        block: Any = event.typed[1]
        if block.alloc_size < 0:
            now -= alive.pop(block.ptr, 0)
            continue
        alive[block.ptr] = block.alloc_size
        now += block.alloc_size
        total += block.alloc_size
        allocations += 1
        peak, largest = max(peak, now), max(largest, block.alloc_size)
    return MemoryPeak(peak, now, total, largest, allocations)


def _events(record: profiler.profile) -> Iterator[Any]:
    results: Any = record.kineto_results
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        is_allocation = event.typed[0] == _EventType.Allocation and event.typed[1].device.type == "cpu"
        if is_allocation or event.name == _MARK or event.name.startswith(MAPPED):
            yield event
