"""Memory of this process and of the machine, as the kernel counts it. No torch.

Resident memory holds everything: the interpreter, libraries, freed blocks that the allocator keeps. It bounds from
above what `memory_peak` and the ledger count by tensor. The high-water mark is VmHWM and not getrusage's ru_maxrss,
which a process takes over from whoever started it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvassay.errors import CapacityError

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_RESET_HIGH_WATER = "5"


class ResidentMemory(NamedTuple):
    now_nbytes: int
    high_water_nbytes: int
    """Most since the process began, or since `reset_high_water`."""


class AvailableMemory(NamedTuple):
    nbytes: int
    source: str
    """What said so."""


def resident_memory() -> ResidentMemory:
    """Resident memory of this process; raises CapacityError where the kernel does not tell (other than Linux)."""
    fields = _fields(_STATUS)
    return ResidentMemory(fields["VmRSS"], fields["VmHWM"])


def reset_high_water() -> bool:
    """Begin the high-water mark anew; False where the kernel does not allow it."""
    try:
        _CLEAR.write_text(_RESET_HIGH_WATER)
    except OSError:
        return False
    return True


def available_memory() -> AvailableMemory:
    """What can be allocated without swapping: the machine's estimate, or what is left of the control group's limit."""
    available = AvailableMemory(_fields(_MEMINFO)["MemAvailable"], "MemAvailable of /proc/meminfo")
    with suppress(OSError, ValueError):  # no limit reads "max"; without control groups there is no file
        left = int((_GROUP / "memory.max").read_text()) - int((_GROUP / "memory.current").read_text())
        if left < available.nbytes:
            return AvailableMemory(max(0, left), "memory.max of the control group")
    return available


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `VmHWM:  1996 kB`, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise CapacityError(f"{path} cannot be read ({error.strerror}); measured memory needs Linux") from error
    parts = (line.split() for line in lines)
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in parts if words[2:] == ["kB"]}
