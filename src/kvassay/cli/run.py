"""`kvassay run`: a matrix of models, formats, workloads and seeds, cell by cell, on one machine or on many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from kvassay.cli.output import print_json
from kvassay.cli.progress_display import ProgressDisplay
from kvassay.cli.status import print_status
from kvassay.cli.torch_extra import require_extra, require_torch
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.byte_size import parse_nbytes
from kvassay.core.records import ExitCode
from kvassay.errors import KEPT_CELLS, UsageError

if TYPE_CHECKING:
    from kvassay.scale.cell import Item, MatrixPlan
    from kvassay.scale.executors.base import Executor
    from kvassay.scale.state import State
    from kvassay.scale.store import Store

Kind = Literal["local", "slurm", "ray"]


def run_matrix(
    matrix: Path,
    /,
    *,
    out: str,
    executor: Kind = "local",
    workers: Annotated[int | None, whole_number(1, 100_000)] = None,
    memory: str | None = None,
    shard: str | None = None,
    parts: Annotated[int, whole_number(1, 1000)] = 1,
    address: str | None = None,
    gpus: float = 0.0,
    slurm: tuple[str, ...] = (),
    cluster: str | None = None,
    lease: float = 60.0,
    retry: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run every cell of a matrix that is not done yet. Exit code 0 all are done, 3 some are not, 2 no answer.

    Kill it anywhere and run it again: finished cells are kept and the others done, with the same result byte for byte.

    Parameters
    ----------
    matrix
        TOML file with models, formats, workloads (contract files) and seeds.
    out
        Store: a folder, or a URL that fsspec knows (s3://bucket/path); several runs may share one.
    executor
        local: processes of this machine; slurm: an array of jobs, by submitit; ray: tasks on a Ray cluster.
    workers
        Processes (default: cores over threads of a cell) or Slurm jobs (default 4).
    memory
        What all local workers may take together (default: what is free), or one Ray task reserves, for example 64GiB.
    shard
        Work in this process alone on one share of the cells, as in 3/16; start the others anywhere, at any time.
    parts
        Split every cell and reference by documents into so many parts, for cells that take hours.
    address
        Of a Ray cluster, as in ray://head:10001; without it Ray is started here.
    gpus
        GPUs that a Ray task reserves; cells of this version run on CPUs.
    slurm
        A setting of submitit as key=value (timeout_min=600, slurm_partition=cpu, mem_gb=64); once for each.
    cluster
        What submitit submits to: found out, or local for processes of this machine.
    lease
        Seconds after which a worker that does not say any more that it works is taken for lost.
    retry
        Try quarantined cells again.
    json
        Print one JSON document.
    """
    from kvassay.scale.matrix import load_matrix

    if shard is not None and executor != "local":
        raise UsageError("--shard works in this process; leave --executor out, or let the executor share the cells")
    given = {"workers": workers, "memory": memory, "address": address, "gpus": gpus, "slurm": slurm, "cluster": cluster}
    _refuse_idle("shard" if shard is not None else executor, {name for name, value in given.items() if value})
    if not 0 <= gpus <= 1024:
        raise UsageError(f"--gpus is {gpus}; expected 0 to 1024")
    if not 0.2 <= lease <= 86400:
        raise UsageError(f"--lease is {lease}; expected 0.2 to 86400 seconds")
    loaded = load_matrix(matrix)
    require_torch("kvassay run")
    require_extra("kvassay run", "scale", "fsspec")
    from kvassay.scale.cell import items_of
    from kvassay.scale.claims import sweep_claims
    from kvassay.scale.executors.base import Job
    from kvassay.scale.failures import forget_failures
    from kvassay.scale.planning import plan_matrix
    from kvassay.scale.plans import write_plan
    from kvassay.scale.status import read_status
    from kvassay.scale.store import Store

    with ProgressDisplay(quiet=json) as progress:
        plan = plan_matrix(loaded, progress.note)
        store = Store(out)
        store.sweep()
        sweep_claims(store)
        digest = write_plan(store, plan)
        items = _share(items_of(plan, parts), shard)
        for item in items:
            forget_failures(store, item.id, errors=retry)
        runner = _executor(executor, plan, store, workers, memory, shard, address, gpus, slurm, cluster)
        progress.stage("cells and references", len(items))
        tell = _Teller(progress)
        try:
            runner.run(Job(store, digest, items, parts, lease), tell)
        except BaseException as error:
            error.add_note(f"{KEPT_CELLS}: {out}")
            raise
    status = read_status(store, plan.groups)
    left = [each for each in status.items if each.item.owner_id in {item.owner_id for item in items}]
    complete = all(each.state == "done" for each in left)
    if json:
        print_json({"store": out, "plan": digest, **status.to_json(), "complete": complete})
    else:
        print_status(out, status)
    return ExitCode.MET if complete else ExitCode.INCONCLUSIVE


_TAKES: dict[str, frozenset[str]] = {
    "local": frozenset({"workers", "memory"}),
    "slurm": frozenset({"workers", "slurm", "cluster"}),
    "ray": frozenset({"memory", "address", "gpus"}),
    "shard": frozenset(),
}


def _refuse_idle(executor: str, given: set[str]) -> None:
    """An option that would do nothing is refused: whoever gave it counts on it."""
    if idle := sorted(given - _TAKES[executor]):
        able = " or ".join(f"--executor {name}" for name, takes in _TAKES.items() if idle[0] in takes)
        where = "--shard" if executor == "shard" else f"--executor {executor}"
        raise UsageError(f"--{idle[0]} does nothing with {where}; it is for {able}")


class _Teller:
    """Steps the bar for what is final, and tells of failed tries."""

    def __init__(self, progress: ProgressDisplay) -> None:
        self._progress = progress

    def __call__(self, item: Item, state: State) -> None:
        if state.is_final:
            self._progress.step()
        if state.value == "failed":
            self._progress.note(f"{item.label}: a try failed; it is tried again")
        elif state.value == "quarantined":
            self._progress.note(f"{item.label}: quarantined; kvassay status tells why")


def _share(items: list[Item], shard: str | None) -> list[Item]:
    from kvassay.scale.executors.pull import parse_shard

    return items if shard is None else parse_shard(shard).of(items)


def _executor(
    kind: Kind,
    plan: MatrixPlan,
    store: Store,
    workers: int | None,
    memory: str | None,
    shard: str | None,
    address: str | None,
    gpus: float,
    slurm: tuple[str, ...],
    cluster: str | None,
) -> Executor:
    nbytes = None if memory is None else parse_nbytes(memory, "--memory")
    if shard is not None:
        from kvassay.scale.executors.pull import PullExecutor

        return PullExecutor()
    if kind == "slurm":
        from kvassay.scale.executors.slurm import SlurmExecutor

        folder = Path(store.local_root or ".") / "slurm"
        return SlurmExecutor(folder, workers or 4, _settings(slurm), cluster)
    if kind == "ray":
        from kvassay.scale.executors.on_ray import RayExecutor

        return RayExecutor(address, gpus, nbytes)
    from kvassay.scale.cost import worker_need
    from kvassay.scale.executors.local import LocalExecutor

    return LocalExecutor(workers, nbytes, worker_need(plan, lambda _line: None))


def _settings(given: tuple[str, ...]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--slurm is {text!r}; expected key=value, as in timeout_min=600")
        found[key] = int(value) if value.isdecimal() else value
    return found
