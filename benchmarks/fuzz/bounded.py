"""Run a call in a forked child that may take so much memory and time and no more, and say how it ended."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kvassay.errors import KvassayError

MEMORY_NBYTES = 500_000_000
CPU_SECONDS = 2
WALL_SECONDS = 60.0
"""Whoever waits takes no CPU time; a busy machine may need long for two seconds of it."""


class Outcome(NamedTuple):
    status: str
    """`accepted`, `refused` (a KvassayError), `fault` (another exception), `memory`, `time`, `hang` or `crash`."""
    error: str
    """Name of the error's class."""
    message: str
    """The error's text; of a fault its traceback."""
    value: Any
    """What the call returned, if it is JSON."""
    grown_nbytes: int
    """Peak resident bytes of the child beyond what it began with."""
    opened: tuple[str, ...]
    """Paths that Python opened."""

    @property
    def sound(self) -> bool:
        return self.status in ("accepted", "refused")


def run_bounded(
    call: Callable[[], Any],
    memory_nbytes: int = MEMORY_NBYTES,
    cpu_seconds: int = CPU_SECONDS,
    wall_seconds: float = WALL_SECONDS,
) -> Outcome:
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _in_child(call, write_end, memory_nbytes, cpu_seconds)
    os.close(write_end)
    told, in_time = _read(read_end, wall_seconds)
    if not in_time:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time:
        return Outcome("hang", "", f"no answer in {wall_seconds:g} s", None, 0, ())
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        kind = "time" if number in (signal.SIGXCPU, signal.SIGKILL) else "crash"
        return Outcome(kind, number.name, f"ended by {number.name}", None, 0, ())
    if not told:
        return Outcome("crash", "", f"exit status {os.WEXITSTATUS(status)} without a word", None, 0, ())
    fields = json.loads(told)
    return Outcome(**{**fields, "opened": tuple(fields["opened"])})


def _in_child(call: Callable[[], Any], write_end: int, memory_nbytes: int, cpu_seconds: int) -> NoReturn:
    opened: list[str] = []
    try:
        _bound(memory_nbytes, cpu_seconds)
        _give_back_free_memory()
        before = _status_nbytes("VmRSS")
        sys.addaudithook(lambda event, args: _note(opened, event, args))
        answer = _answer(call)
        # A limit on address space must not keep the answer from being sent.
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        grown = _status_nbytes("VmHWM") - before
        told = json.dumps({**answer, "grown_nbytes": grown, "opened": opened}).encode()
        with os.fdopen(write_end, "wb") as file:
            file.write(told)
        os._exit(0)
    except BaseException:
        os._exit(3)


def _answer(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        value = call()
    except KvassayError as error:
        caused_by_memory = isinstance(error.__cause__, MemoryError) or "malloc of size" in str(error)
        status = "memory" if caused_by_memory else "refused"
        return {"status": status, "error": type(error).__name__, "message": str(error)[:2000], "value": None}
    except MemoryError:
        return {
            "status": "memory",
            "error": "MemoryError",
            "message": "out of the memory that is allowed",
            "value": None,
        }
    except BaseException as error:
        text = "".join(traceback.format_exception(error, limit=-12))[-4000:]
        return {"status": "fault", "error": type(error).__name__, "message": text, "value": None}
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        value = None
    return {"status": "accepted", "error": "", "message": "", "value": value}


def _bound(memory_nbytes: int, cpu_seconds: int) -> None:
    with suppress(ImportError):
        import pyarrow

        # The other pools reserve a gigabyte of addresses at once, which a limit on addresses takes for use.
        pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_status_nbytes("VmSize") + memory_nbytes, hard))
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + cpu_seconds + 1, spent + cpu_seconds + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _give_back_free_memory() -> None:
    """What the parent freed and kept would serve the call, whose growth then would not show."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is that of the parent until now


def _note(opened: list[str], event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(args[0], str | bytes):
        opened.append(os.fsdecode(args[0]))


def _status_nbytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _read(descriptor: int, seconds: float) -> tuple[bytes, bool]:
    """All bytes until the other end closes, and whether it closed in time."""
    end, data = time.monotonic() + seconds, b""
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([file], [], [], left)
            if ready:
                piece = file.read(1 << 16)
                if not piece:
                    return data, True
                data += piece
    return data, False
