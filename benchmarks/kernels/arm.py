"""What an arm is, and how far its output may be from float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from benchmarks.kernels.inputs import Inputs


class Arm(NamedTuple):
    step: Callable[[], Tensor]
    """One decode step of attention over a cache that is filled; `query_heads * head_dim` numbers, heads first."""
    read_nbytes: int
    """What a step must read at least: the cache as this engine holds it."""
    library: str
    """Who computes, with version, and what the library says of its build."""


class ArmKind(NamedTuple):
    make: Callable[[Inputs, int], Arm]
    """From inputs and the number of threads. Raises ImportError where a package is missing, RuntimeError or ValueError
    where the engine does not take this."""
    most_error: float
    """Of the output against float64 on the same keys and values: several times what such a format costs on Gaussian
    numbers. An arm beyond it computes something else and is not timed."""


FLOAT32, BITS_16, BITS_8, BITS_4, BITS_2 = 1e-4, 0.05, 0.05, 0.5, 1.0
"""Limits of `most_error` by bits. At 16 bits there is room for an engine that sums values in float16, whose error grows
with the context."""
