"""Processes, named so that their own machine can tell whether they live, and the memory that is left for more."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from kvassay.core.digest import sha256_bytes


@cache
def this_host() -> str:
    """A machine as it was booted, and the process namespace in which numbers of processes hold."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{platform.node()} unknown {os.getpid()}"  # equal to no other process's: nothing is known of those


def started(pid: int) -> str | None:
    """When a process started, in ticks since boot; None where there is none, or only what is left of one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def process_mark() -> str:
    """Of this process, for the name of a file that it is writing."""
    return f"{_short_host()}-{os.getpid()}-{started(os.getpid())}"


def is_mark_of_dead(mark: str) -> bool:
    """True only where it is certain: a process of this machine that has ended."""
    host, _, rest = mark.partition("-")
    pid, _, begun = rest.partition("-")
    return host == _short_host() and pid.isdecimal() and started(int(pid)) != begun


@cache
def _short_host() -> str:
    return sha256_bytes(this_host().encode())[:12]


def available_memory_nbytes() -> int:
    """Memory that can be taken without swapping; all of it where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        return kibibytes * 1024
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
