"""Every way of running gives the same rows: local processes, Slurm's local stand-in, shards by hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kvassay.errors import MissingExtraError, UsageError
from kvassay.pack.tables import TABLE_COLUMNS
from kvassay.scale.cell import items_of
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.local import LocalExecutor
from kvassay.scale.executors.pull import PullExecutor, parse_shard
from kvassay.scale.executors.slurm import SlurmExecutor
from kvassay.scale.matrix import load_matrix
from kvassay.scale.merge import merge_group
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.status import read_status
from kvassay.scale.store import Store


@pytest.fixture
def plan(matrix_file, tiny_folder, other_folder):
    """Two models, two workloads, two formats."""
    path = matrix_file(models=(str(tiny_folder), str(other_folder)), workloads=("text.toml", "task.toml"))
    return plan_matrix(load_matrix(path), lambda _line: None)


def job_of(plan, root: Path) -> Job:
    store = Store(str(root))
    return Job(store, write_plan(store, plan), items_of(plan), 1, 2.0)


def merged_rows(job: Job, plan, out: Path) -> dict[str, bytes]:
    """All row files and verdicts of all packs."""
    found: dict[str, bytes] = {}
    for index, group in enumerate(plan.groups):
        merge_group(job.store, group, out / str(index))
        for path in (*(out / str(index)).glob("rows/*.parquet"), out / str(index) / "verdicts.json"):
            found[f"{index}/{path.name}"] = path.read_bytes()
    return found


def nothing(_item, _state) -> None:
    return


@pytest.mark.slow
def test_local_processes_slurm_and_shards_give_the_same_rows_and_verdicts(plan, tmp_path) -> None:
    rows: dict[str, dict[str, bytes]] = {}
    for name in ("shards", "local", "slurm"):
        job = job_of(plan, tmp_path / name)
        if name == "shards":
            for index in (3, 1, 2):
                own = parse_shard(f"{index}/3").of(list(job.items))
                PullExecutor().run(job._replace(items=own), nothing)
        elif name == "local":
            LocalExecutor(workers=2).run(job, nothing)
        else:
            SlurmExecutor(tmp_path / "logs", 2, {"timeout_min": 30}, cluster="local").run(job, nothing)
        assert read_status(job.store, plan.groups).complete
        rows[name] = merged_rows(job, plan, tmp_path / f"{name}-packs")
    assert rows["local"] == rows["shards"]
    assert rows["slurm"] == rows["shards"]
    assert len(rows["local"]) == 4 * (len(TABLE_COLUMNS) + 1)


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced_and_their_cells_done(plan, tmp_path) -> None:
    """The coordinator lives on; each of its workers is killed once it has begun an item."""
    job = job_of(plan, tmp_path / "store")
    seen: set[int] = set()
    stop = threading.Event()

    def shoot() -> None:
        while not stop.wait(0.05) and len(seen) < 3:
            for name in job.store.names("claims"):
                data = job.store.read(f"claims/{name}")
                pid = 0 if data is None else int(data.decode().partition('"pid":')[2].partition(",")[0])
                if pid and pid not in seen and len(seen) < 3:
                    seen.add(pid)
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(0.3)

    gun = threading.Thread(target=shoot)
    gun.start()
    states: list[str] = []
    LocalExecutor(workers=2).run(job, lambda _item, state: states.append(state.value))
    stop.set()
    gun.join()
    assert len(seen) == 3
    assert states.count("failed") >= 1
    status = read_status(job.store, plan.groups)
    assert status.complete
    quiet = job_of(plan, tmp_path / "quiet")
    PullExecutor().run(quiet, nothing)
    assert status.results_sha256 == read_status(quiet.store, plan.groups).results_sha256


class _Held:
    """A worker that holds memory, for the rule alone."""

    def __init__(self, need_nbytes: int) -> None:
        self.need_nbytes = need_nbytes


def test_workers_are_packed_by_cores_and_memory(plan) -> None:
    (group, *_) = plan.groups
    tight = LocalExecutor(workers=8, memory_nbytes=100, need=lambda _group: 40)
    assert tight.room(group, [])
    assert tight.room(group, [_Held(40)])
    assert not tight.room(group, [_Held(40), _Held(40)])
    alone = LocalExecutor(workers=8, memory_nbytes=10, need=lambda _group: 40)
    assert alone.room(group, [])
    assert not alone.room(group, [_Held(40)])
    cores = LocalExecutor(memory_nbytes=1 << 60, need=lambda _group: 1)
    most = max(1, (os.cpu_count() or 1) // group.threads)
    assert cores.room(group, [_Held(1)] * (most - 1))
    assert not cores.room(group, [_Held(1)] * most)


def test_shards_together_are_the_matrix_and_share_nothing_but_references(plan) -> None:
    items = items_of(plan)
    shards = [parse_shard(f"{index}/5").of(items) for index in range(1, 6)]
    cells = [item.id for shard in shards for item in shard if item.cell is not None]
    assert sorted(cells) == sorted(item.id for item in items if item.cell is not None)
    for shard in shards:
        needed = {item.group.reference for item in shard if item.cell is not None}
        assert {item.owner_id for item in shard if item.cell is None} == needed


def test_a_scheduler_that_is_not_installed_is_named(tmp_path, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"kvassay\[slurm\]"):
        SlurmExecutor(tmp_path, 2)
    with pytest.raises(UsageError, match="3/16"):
        parse_shard("17/16")
