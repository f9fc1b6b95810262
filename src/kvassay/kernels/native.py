"""The compiled module, or why it is not there."""

from __future__ import annotations

import importlib
import os
import warnings
from functools import cache
from types import ModuleType
from typing import NamedTuple

from kvassay.errors import KernelError

INSTRUCTION_SET_VARIABLE = "KVASSAY_INSTRUCTION_SET"
"""Environment variable: run kernels with this instruction set, as tests and benchmarks do."""

_MISSING = (
    "kvassay was installed without its compiled module, as happens where there is no C++ compiler; install g++ (or "
    "clang++) and install kvassay again, with pip's --force-reinstall --no-cache-dir --no-deps"
)


class NativeState(NamedTuple):
    """What of the compiled module can run here."""

    instruction_sets: tuple[str, ...]
    """Those that were compiled and that the processor has, the fastest first; empty without the module."""
    missing: str | None
    """Why there is no module, and the way out; None where there is one."""
    module: ModuleType | None = None
    """The module itself: an import by name takes longer than some of its calls."""


@cache
def native_state() -> NativeState:
    """Whether kernels can run, found out once a process."""
    try:
        module = importlib.import_module("kvassay.kernels._native")
    except ModuleNotFoundError as error:
        if error.name != "kvassay.kernels._native":
            raise
        return NativeState((), _MISSING)
    except ImportError as error:
        return NativeState((), f"kvassay's compiled module does not load: {error}; install kvassay again")
    return NativeState(tuple(module.instruction_sets()), None, module)


def kernels_text() -> str:
    """Which kernels can run here, or how to get them; for a line of `doctor`, evidence and report."""
    state = native_state()
    if state.missing is not None:
        return f"none, attention reads pages in torch; {state.missing}"
    return f"exact by {', '.join(state.instruction_sets)}; reference in torch"


def warn_if_missing() -> None:
    """Say once, where a cache is first made, that none of its attention is compiled."""
    if native_state().missing is not None:
        warnings.warn(f"kernels: {kernels_text()}", stacklevel=3)


def instruction_set() -> str:
    """The set that kernels run with: the fastest, or the one that the environment names.

    Raises KernelError for a name that is not among those of `native_state`.
    """
    state = native_state()
    wanted = os.environ.get(INSTRUCTION_SET_VARIABLE, "")
    if wanted and wanted not in state.instruction_sets:
        there = ", ".join(state.instruction_sets)
        raise KernelError(f"{INSTRUCTION_SET_VARIABLE} is {wanted!r}; this processor and build have {there}")
    return wanted or state.instruction_sets[0]


def native_module() -> ModuleType:
    """The module. Raises KernelError where there is none."""
    state = native_state()
    if state.module is None:
        raise KernelError(state.missing)
    return state.module
