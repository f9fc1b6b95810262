"""A matrix whose workers are killed at random, a hundred times, and what is left of it.

    python -m benchmarks.scale_kills [--kills 100] [--workers 2] [--parts 2] [--seed 7]

Run from a clone, whose tests hold the tiny models. Two workers at a time share one store; each is killed by SIGKILL
after a random time, and two others start. Prints how many were killed at work, and whether the result is that of a run
that nobody disturbed: the same digest, the same files of rows and records, no claim left.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.scale.conftest import TASK_CONTRACT, TEXT_CONTRACT
from tests.scale.killing import run_under_fire
from tests.scale.tiny import write_models, write_texts

from kvassay.scale.cell import MatrixPlan, items_of
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.matrix import load_matrix
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.status import read_status
from kvassay.scale.store import Store

FORMATS = ("int8-token-head", "int8-tensor", "kivi-4,recent=8", "int4-g32", "q8_0", "f16")


def tiny_matrix(folder: Path) -> MatrixPlan:
    """Two tiny models, two workloads, six formats."""
    texts = write_texts(folder / "texts")
    (folder / "text.toml").write_text(TEXT_CONTRACT.format(texts=texts))
    (folder / "task.toml").write_text(TASK_CONTRACT)
    asked = {"models": [str(path) for path in write_models(folder)], "formats": list(FORMATS)}
    asked["workloads"] = ["text.toml", "task.toml"]
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asked.items())
    (folder / "matrix.toml").write_text(f'schema = "kvassay.matrix/1"\nname = "tiny"\n{lines}\n')
    return plan_matrix(load_matrix(folder / "matrix.toml"), print)


def content(root: Path) -> set[str]:
    """Names, which hold the digest of what is in them, of all files that every run gives alike."""
    return {path.name for path in root.glob("cells/*/*") if not path.name.startswith(("run-", "log-", "manifest"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan = tiny_matrix(folder)
        store = Store(str(folder / "quiet"))
        began = time.monotonic()
        job = Job(store, write_plan(store, plan), items_of(plan), 1, 5.0)
        PullExecutor().run(job, lambda _item, _state: None)
        quiet, quiet_seconds = read_status(store, plan.groups), time.monotonic() - began
        longest = 4 * quiet_seconds / len(job.items)
        began = time.monotonic()
        fired = run_under_fire(
            plan, folder / "fired", given.kills, given.seed, given.workers, given.parts, longest_seconds=longest
        )
        print(f"undisturbed: {len(quiet.items)} cells and references in {quiet_seconds:.1f} s, {quiet.results_sha256}")
        print(f"under fire:  {fired.kills} workers killed in {time.monotonic() - began:.1f} s, {fired.results_sha256}")
        print(f"same digest: {fired.results_sha256 == quiet.results_sha256}")
        print(f"same rows and records: {content(folder / 'fired') == content(folder / 'quiet')}")
        print(f"claims left: {len(list((folder / 'fired').glob('claims/*')))}")


if __name__ == "__main__":
    main()
