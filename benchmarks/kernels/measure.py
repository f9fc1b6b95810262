"""All arms of a shape in turn in one process, after each has shown that it computes attention."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.kernels.arm import Arm, ArmKind
from benchmarks.kernels.inputs import Inputs, Shape, draw
from benchmarks.kernels.roof import Reader

SLOW_S = 0.1
SLOW_EVERY = 4
ROOF_NBYTES = 256 << 20
WARM_TOKENS = 256
PAUSE_S = 0.02
"""Before a turn with several threads: idle threads of an engine's pool spin for some milliseconds after its call."""


class Times(NamedTuple):
    wall_s: float
    cpu_s: float
    """Of all threads of the process."""


def timed(step: Callable[[], Any]) -> Times:
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    wall = time.perf_counter() - wall
    return Times(wall, time.process_time() - cpu)


def prepare(inputs: Inputs, kinds: Mapping[str, ArmKind], threads: int) -> tuple[dict[str, Arm], dict[str, Any]]:
    """Arms that run, and a row for each, with its error or why it did not run. An arm that is farther from float64 than
    its format explains does not run."""
    arms: dict[str, Arm] = {}
    rows: dict[str, Any] = {}
    for name, kind in kinds.items():
        began = time.perf_counter()
        rows[name] = {"shape": inputs.shape.heads, "context": inputs.shape.context, "threads": threads, "arm": name}
        try:
            arm = kind.make(inputs, threads)
            error = inputs.error_of(arm.step())
            if not error <= kind.most_error:
                limit = f"expected at most {kind.most_error:g}"
                raise ValueError(f"its output is {error:.2g} away from attention in float64, {limit}")
        except (ImportError, RuntimeError, ValueError) as failure:
            rows[name]["did_not_run"] = " ".join(str(failure).split())
            continue
        arms[name] = arm
        rows[name] |= {"error": error, "library": arm.library, "read_mib": arm.read_nbytes / 2**20}
        print(f"filled {name} in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return arms, rows


def measure(
    shape: Shape, kinds: Mapping[str, ArmKind], rounds: int, threads: int, cold: bool = False
) -> list[dict[str, Any]]:
    """A row an arm. `median_us` is what is compared: CPU time with one thread, wall time with more.

    Before each timed step the arm takes one over a cache of 256 tokens, as the layer before does in a model: its code
    is at hand and its cache is not. With `cold` it does not, and an arm whose turn follows one of the same engine is
    ahead of the others. With several threads it does not either: threads that such a step wakes spin or fall asleep
    again, and the next step takes longer for it.
    """
    read = Reader(ROOF_NBYTES, threads)
    arms, rows = prepare(draw(shape), kinds, threads)
    few = draw(shape._replace(context=WARM_TOKENS))
    warm = {} if cold or threads > 1 else prepare(few, {name: kinds[name] for name in arms}, threads)[0]
    names = list(arms)
    slow = {name for name in names if timed(arms[name].step).wall_s > SLOW_S}
    turns: dict[str, list[Times]] = {name: [] for name in names}
    roof: list[Times] = []
    for turn in range(rounds):
        roof.append(timed(read))
        shift = turn % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            if name not in slow or turn % SLOW_EVERY == 0:
                if threads > 1:
                    time.sleep(PAUSE_S)
                if name in warm:
                    warm[name].step()
                turns[name].append(timed(arms[name].step))
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    bandwidth = ROOF_NBYTES / statistics.median(_compared(roof, threads))
    first = statistics.median(_compared(turns[names[0]], threads)) if names else math.nan
    for name in names:
        seconds = _compared(turns[name], threads)
        median = statistics.median(seconds)
        rows[name] |= {
            "median_us": median * 1e6,
            "low_us": min(seconds) * 1e6,
            "high_us": max(seconds) * 1e6,
            "wall_us": statistics.median(each.wall_s for each in turns[name]) * 1e6,
            "cpu_us": statistics.median(each.cpu_s for each in turns[name]) * 1e6,
            "n": len(seconds),
            "times_first": median / first,
            "gb_per_s": arms[name].read_nbytes / median / 1e9,
            "roof_gb_per_s": bandwidth / 1e9,
            "of_roof": arms[name].read_nbytes / median / bandwidth,
        }
    return list(rows.values())


def _compared(turns: Sequence[Times], threads: int) -> list[float]:
    return [each.cpu_s if threads == 1 else each.wall_s for each in turns]
