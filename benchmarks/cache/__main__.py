"""Bytes, peaks and seconds a token of whole caches in decoding, on SmolLM2-135M.

    python -m benchmarks.cache [--context 8000] [--batch 4] [--tokens 64] [--rounds 3] [--prefill synthetic|model]
                               [--arm NAME]... [--markdown FILE] [--json FILE]

Quick: `--context 512 --batch 2 --tokens 8 --rounds 1`. Every arm of every round is a fresh process; rounds begin at
another arm each, so that a slow minute of the machine does not fall on one arm. Figures of memory are of the last
round, seconds the median of all steps of all rounds with the range of the rounds' medians.

`--prefill synthetic` writes Gaussian keys and values with the model's own mean and spread a channel, in chunks, through
the cache's `update`; `model` runs the model on random tokens, in the same chunks. The decode steps are the model's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.cache.arms import DEFAULT_ARMS, parse_arm
from benchmarks.cache.measure import Measured, Task, measure

_RESULT = "measured "
Results = dict[str, list[Measured | str]]
"""By arm: one figure a round, or why there is none."""


def run_arm(task: Task) -> Measured | str:
    """In a fresh process; the last line of its error where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cache", "--one", task.model_dump_json()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},  # the allocator as users have it, since steps are timed
    )
    for line in done.stdout.splitlines():
        if line.startswith(_RESULT):
            return Measured.model_validate_json(line.removeprefix(_RESULT))
    return (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]


def run_rounds(tasks: list[Task], rounds: int) -> Results:
    results: Results = {task.arm: [] for task in tasks}
    for index in range(rounds):
        shift = index * len(tasks) // rounds
        for task in tasks[shift:] + tasks[:shift]:
            found = run_arm(task)
            results[task.arm].append(found)
            said = found if isinstance(found, str) else f"{statistics.median(found.step_s):.3f} s a step"
            print(f"round {index + 1} of {rounds}, {task.arm}: {said}", file=sys.stderr, flush=True)
    return results


def row(arm: str, found: list[Measured | str]) -> dict[str, object]:
    good = [one for one in found if isinstance(one, Measured)]
    if not good:
        return {"arm": arm, "did_not_run": found[-1]}
    last = good[-1]
    medians = [statistics.median(one.step_s) for one in good]
    return {
        **last.model_dump(mode="json", exclude={"step_s"}),
        "ratio_to_float16": last.ratio_to_float16,
        "rounds": len(good),
        "step_s_median": statistics.median(seconds for one in good for seconds in one.step_s),
        "step_s_round_medians": medians,
        "step_s": [one.step_s for one in good],
    }


def markdown(rows: list[dict[str, object]]) -> str:
    lines = [
        "| cache | persistent MiB | of 16 bit | ledger | step transient MiB | fill peak MiB | fill resident MiB "
        "| decode resident MiB | s a step (rounds) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        if "did_not_run" in one:
            lines.append(f"| {one['arm']} | did not run: {one['did_not_run']} |" + " |" * 7)
            continue
        mib = {
            key: f"{value / 2**20:.1f}" for key, value in one.items() if key.endswith("nbytes") and value is not None
        }
        ledger = "-"
        if one["ledger_nbytes"] is not None:
            differs = one["persistent_nbytes"] - one["ledger_nbytes"]  # pyright: ignore[reportOperatorIssue]
            ledger = "equal" if differs == 0 == one["ledger_nbytes"] - one["predicted_nbytes"] else f"{differs:+,} B"
        medians = one["step_s_round_medians"]
        lines.append(
            f"| {one['arm']} | {mib['persistent_nbytes']} | {one['ratio_to_float16']:.3f} | {ledger} "
            f"| {mib['decode_transient_nbytes']} | {mib['prefill_peak_nbytes']} "
            f"| {mib['prefill_resident_high_water_nbytes']} | {mib['decode_resident_high_water_nbytes']} "
            f"| {one['step_s_median']:.3f} ({min(medians):.3f} to {max(medians):.3f}) |"
        )
    return "\n".join(lines) + "\n"


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--prefill", choices=("synthetic", "model"), default="synthetic")
    parser.add_argument("--arm", action="append", help="repeat it; all if left out")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.one is not None:
        print(_RESULT + measure(Task.model_validate_json(arguments.one)).model_dump_json(), flush=True)
        return
    tasks = [
        Task(
            arm=parse_arm(arm).name,
            model=arguments.model,
            context=arguments.context,
            batch=arguments.batch,
            tokens=arguments.tokens,
            chunk=arguments.chunk,
            prefill=arguments.prefill,
        )
        for arm in arguments.arm or DEFAULT_ARMS
    ]
    rows = [row(arm, found) for arm, found in run_rounds(tasks, arguments.rounds).items()]
    settings = {
        "command": " ".join(["python -m benchmarks.cache", *(sys.argv[1:] if given is None else given)]),
        **tasks[0].model_dump(mode="json", exclude={"arm"}),
        "rounds": arguments.rounds,
    }
    table = markdown(rows)
    print(table)
    if arguments.markdown is not None:
        arguments.markdown.write_text(f"`{settings['command']}`\n\n{table}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"settings": settings, "arms": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
