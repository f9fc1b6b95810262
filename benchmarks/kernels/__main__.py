"""Attention of one decode step of one layer: ours, torch's, and what a quantized cache costs without kernels.

    python -m benchmarks.kernels [--context N]... [--shape QUERY_HEADSxKV_HEADSxHEAD_DIM]... [--rounds N] [--threads N]
                                 [--arm NAME]... [--markdown FILE] [--json FILE]

All arms of a shape run in turn in one process, so that a slow moment of the machine does not fall on one of them;
figures are medians of wall time (and of the calling thread's CPU time with one thread). The roof is the read speed of
memory (large pages, as many threads), measured in the same turns. Ratios are to the first arm. Slow arms run at every
fourth turn. A second table sets what was found against what is asked of the kernels (`goals.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.arms import ARMS, Reader, Shape
from benchmarks.kernels.goals import goal_lines
from kvassay.kernels.native import instruction_set

SLOW_S = 0.1
ROOF_NBYTES = 256 << 20


def timed(step: Any, threads: int) -> float:
    clock = time.thread_time if threads == 1 else time.perf_counter
    begin = clock()
    step()
    return clock() - begin


def measure(shape: Shape, names: list[str], rounds: int, threads: int) -> list[dict[str, Any]]:
    read = Reader(ROOF_NBYTES, threads)
    arms = {}
    for name in names:
        arms[name] = ARMS[name](shape)
        arms[name].step()
    slow = {name for name in names if timed(arms[name].step, threads) > SLOW_S}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    roof: list[float] = []
    for turn in range(rounds):
        roof.append(ROOF_NBYTES / timed(read, threads))
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if name not in slow or turn % 4 == 0:
                seconds[name].append(timed(arms[name].step, threads))
    bandwidth = statistics.median(roof)
    first = statistics.median(seconds[names[0]])
    rows = []
    for name in names:
        median = statistics.median(seconds[name])
        rows.append(
            {
                "shape": f"{shape.query_heads}x{shape.kv_heads}x{shape.head_dim}",
                "context": shape.context,
                "threads": threads,
                "arm": name,
                "median_us": median * 1e6,
                "low_us": min(seconds[name]) * 1e6,
                "high_us": max(seconds[name]) * 1e6,
                "n": len(seconds[name]),
                "times_first": median / first,
                "read_mib": arms[name].read_nbytes / 2**20,
                "gb_per_s": arms[name].read_nbytes / median / 1e9,
                "roof_gb_per_s": bandwidth / 1e9,
                "of_roof": arms[name].read_nbytes / median / bandwidth,
            }
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| heads, context | arm | µs (range) | times the first | GB/s | of the roof |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['shape']}, {row['context']:,} | {row['arm']} | {row['median_us']:,.0f} "
            f"({row['low_us']:,.0f} to {row['high_us']:,.0f}) | {row['times_first']:.2f} | {row['gb_per_s']:.1f} "
            f"| {100 * row['of_roof']:.0f}% of {row['roof_gb_per_s']:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, action="append")
    parser.add_argument("--shape", action="append")
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"kernels: {instruction_set()}, torch {torch.__version__}, {options.threads} threads", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for text in options.shape or ["32x8x128"]:
        query_heads, kv_heads, head_dim = (int(part) for part in text.split("x"))
        for context in options.context or [4096, 32768]:
            shape = Shape(query_heads, kv_heads, head_dim, context)
            found = measure(shape, options.arm or list(ARMS), options.rounds, options.threads)
            rows += found
            print(markdown(found), flush=True)
    goals = goal_lines(rows)
    print("\n".join(goals))
    if options.markdown:
        options.markdown.write_text("\n".join([markdown(rows), "", *goals]) + "\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
