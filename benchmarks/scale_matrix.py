"""One matrix, run in every way: equal rows, shared references, overhead, and what a second worker gives.

    python -m benchmarks.scale_matrix [--ways one,two,shards,slurm,ray] [--models smollm2-135m,tiny]
                                      [--documents 20] [--items 20]

Run from a clone. Two models, six formats, two workloads: 32 cells (with canary and the reference again) and four
references. `one` and `two` are that many local processes of one thread each; `shards` three shards one after another;
`slurm` is submitit's local stand-in and `ray` a cluster of two CPUs here. Prints, a way a line, wall seconds, seconds
of work in cells and references, the share of worker time that is not work (start of processes, planning, waiting at the
end), and a digest of all row files and verdicts of the merged packs, which must be the same in every line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.scale.tiny import write_models

from kvassay.core.digest import sha256_bytes
from kvassay.scale.cell import MatrixPlan, items_of
from kvassay.scale.cost import matrix_cost, reached_rate
from kvassay.scale.executors.base import Executor, Job
from kvassay.scale.executors.local import LocalExecutor
from kvassay.scale.executors.on_ray import RayExecutor
from kvassay.scale.executors.pull import PullExecutor, parse_shard
from kvassay.scale.executors.slurm import SlurmExecutor
from kvassay.scale.matrix import load_matrix
from kvassay.scale.merge import merge_group
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.status import read_status
from kvassay.scale.store import Store

FORMATS = ("int8-token-head", "int8-tensor", "kivi-4,recent=32", "int4-g32", "q8_0", "fp8-e4m3-token-head")
TEXT = """
schema = "kvassay.contract/1"
name = "text"
[text]
documents = {documents}
prompt_tokens = 128
scored_tokens = 128
[candidates]
order = ["f16"]
[inference]
pilot_documents = 2
[fidelity.kl_mean]
max = 0.01
"""
TASK = """
schema = "kvassay.contract/1"
name = "task"
[candidates]
order = ["f16"]
[inference]
pilot_items = 2
[task.arithmetic]
margin = 0.1
ref_floor = 0.0
items = {items}
"""


def write_matrix(folder: Path, models: list[str], documents: int, items: int) -> Path:
    tiny, _ = write_models(folder)
    named = [str(tiny) if model == "tiny" else model for model in models]
    (folder / "text.toml").write_text(TEXT.format(documents=documents))
    (folder / "task.toml").write_text(TASK.format(items=items))
    asked = {"models": named, "formats": list(FORMATS), "workloads": ["text.toml", "task.toml"]}
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asked.items())
    (folder / "matrix.toml").write_text(f'schema = "kvassay.matrix/1"\nname = "bench"\n{lines}\n')
    return folder / "matrix.toml"


def executor(way: str, folder: Path) -> tuple[Executor, int]:
    """How to run it, and with how many workers."""
    match way:
        case "one" | "two":
            workers = 1 if way == "one" else 2
            return LocalExecutor(workers=workers), workers
        case "slurm":
            return SlurmExecutor(folder / "slurm-logs", 2, {"timeout_min": 600}, cluster="local"), 2
        case "ray":
            return RayExecutor(None), 2
        case _:
            return PullExecutor(), 1


def rows_digest(store: Store, plan: MatrixPlan, out: Path) -> str:
    """Of all row files and verdicts of the packs, in the groups' order."""
    found = b""
    for index, group in enumerate(plan.groups):
        pack = merge_group(store, group, out / str(index)).out
        for path in (*sorted(pack.glob("rows/*.parquet")), pack / "verdicts.json"):
            found += sha256_bytes(path.read_bytes()).encode()
    return sha256_bytes(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="one,two,shards,slurm,ray")
    parser.add_argument("--models", default="smollm2-135m,tiny")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--items", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = write_matrix(folder, given.models.split(","), given.documents, given.items)
        walls: dict[str, float] = {}
        for way in given.ways.split(","):
            began = time.monotonic()
            plan = plan_matrix(load_matrix(path), print)
            store = Store(str(folder / way))
            job = Job(store, write_plan(store, plan), items_of(plan))
            runner, workers = executor(way, folder)
            shares = [parse_shard(f"{i}/3").of(list(job.items)) for i in (1, 2, 3)] if way == "shards" else [job.items]
            for share in shares:
                runner.run(job._replace(items=share), lambda _item, _state: None)
            walls[way] = wall = time.monotonic() - began
            status = read_status(store, plan.groups)
            work = sum(each.seconds or 0.0 for each in status.items)
            print(
                f"{way:7} {wall:8.1f} s wall {work:8.1f} s work {100 * (1 - work / (workers * wall)):5.1f}% not work  "
                f"{rows_digest(store, plan, folder / f'{way}-packs')}",
                flush=True,
            )
        if {"one", "two"} <= set(walls):
            print(f"two workers are {walls['one'] / walls['two']:.2f} times as fast as one")
        cost = matrix_cost(plan, 1, None, print)
        known = reached_rate(plan, cost.groups, Store(str(folder / next(iter(walls)))))
        assert known is not None, "a way that ran left finished cells"
        total = cost.to_json()["total"]
        shared, unshared = total["reference_tokens"], total["unshared_reference_tokens"]
        print(f"reference tokens: {status.reference_tokens:,} run, {shared:,} planned, {unshared:,} if unshared")
        print(f"sharing: {unshared / max(1, status.reference_tokens):.2f} times fewer")
        print(
            f"plan: {total['flops']:.3g} FLOPs, {3600 * cost.hours:.0f} s at {cost.flops_per_second:.3g} FLOP/s "
            f"(probe); {total['flops'] * known.seconds / known.flops:.0f} s at the rate of the first way's cells; "
            f"the last way took {work:.0f} s of work"
        )


if __name__ == "__main__":
    main()
