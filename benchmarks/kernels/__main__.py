"""Attention of one decode step of one layer: ours, torch's, other engines', and with a cache that is decoded first.

    python -m benchmarks.kernels [--context N]... [--shape QUERY_HEADSxKV_HEADSxHEAD_DIM]... [--rounds N] [--threads N]
                                 [--arm NAME]... [--cold] [--markdown FILE] [--json FILE]

Every arm holds the same keys and values, in its own format and layout. Before it is timed its output is compared with
attention in float64; the error stands in the table, and an arm that is farther away than its format explains is not
timed. All arms of a shape run in turn in one process, so that a slow moment of the machine does not fall on one of
them; figures are medians of the process's CPU time with one thread, and of wall time with more. The roof is the read
speed of memory (large pages, as many threads), measured in the same turns. An arm's code is warm and its cache is not,
as in a model, whose layers follow each other (neither is with `--cold` or several threads). Ratios are to the first
arm. Slow arms run at every fourth turn. A second table sets what was found against what is asked of the kernels
(`goals.py`).

Engines that are not installed are lines that say so; the extra `bench-engines` names their packages.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.arms import ARMS
from benchmarks.kernels.goals import goal_lines
from benchmarks.kernels.inputs import Shape
from benchmarks.kernels.measure import measure
from benchmarks.kernels.table import markdown
from kvassay.kernels.native import instruction_set


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, action="append")
    parser.add_argument("--shape", action="append")
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(given)
    torch.set_num_threads(options.threads)
    print(f"kernels: {instruction_set()}, torch {torch.__version__}, {options.threads} threads", file=sys.stderr)
    kinds = {name: ARMS[name] for name in options.arm or ARMS}
    rows: list[dict[str, Any]] = []
    for text in options.shape or ["32x8x128"]:
        query_heads, kv_heads, head_dim = (int(part) for part in text.split("x"))
        for context in options.context or [4096, 32768]:
            shape = Shape(query_heads, kv_heads, head_dim, context)
            with torch.inference_mode():
                found = measure(shape, kinds, options.rounds, options.threads, options.cold)
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
