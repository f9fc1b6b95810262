"""Ray: one task an item with its resources; references go to the cells through the object store.

Where tasks run, and how many machines there are, is Ray's. A cell's task depends on its reference's, so Ray starts it
when that is there, and hands the reference over in shared memory; the store keeps it all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvassay.errors import ExecutorError, MissingExtraError, StoreError
from kvassay.scale.bench import Bench
from kvassay.scale.cell import Item, items_of
from kvassay.scale.cell_files import read_units
from kvassay.scale.claims import Watch, this_process
from kvassay.scale.executors.base import Finished, Job, poll_seconds
from kvassay.scale.failures import Failure, record_failure
from kvassay.scale.plans import read_plan
from kvassay.scale.state import State
from kvassay.scale.store import Store
from kvassay.scale.work import perform

MOST_SHARED_NBYTES = 8 << 30
"""A larger reference is read from the store by each cell, a document at a time."""

_BENCHES: dict[str, Bench] = {}
"""One a process: Ray runs one task after another in it, and the model stays loaded."""


class RayExecutor:
    def __init__(self, address: str | None, num_gpus: float = 0.0, memory_nbytes: int | None = None) -> None:
        """`address` as `ray://HOST:PORT` or `auto`; None starts Ray here. `memory_nbytes` is what a task reserves."""
        try:
            import ray  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            raise MissingExtraError("--executor ray needs Ray: pip install 'kvassay[ray]'") from error
        self._ray: Any = ray
        self._address = address
        self._gpus = num_gpus
        self._memory = memory_nbytes

    def run(self, job: Job, finished: Finished) -> None:
        ray = self._ray
        mine = not ray.is_initialized()
        if mine:
            try:
                ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
            except Exception as error:
                raise ExecutorError(f"Ray cannot be reached at {self._address or 'this machine'}: {error}") from error
        try:
            self._run(job, finished)
        finally:
            if mine:
                ray.shutdown()

    def _run(self, job: Job, finished: Finished) -> None:
        ray = self._ray
        # Losses are counted here, and so are not retried behind our back.
        asked: dict[str, Any] = {"num_cpus": job.items[0].group.threads if job.items else 1, "max_retries": 0}
        if self._gpus:
            asked["num_gpus"] = self._gpus
        if self._memory:
            asked["memory"] = self._memory
        remote = ray.remote(run_task).options(num_returns=2, **asked)
        pending: dict[Any, Item] = {}
        shared: dict[str, Any] = {}

        def submit(item: Item, after: Any = None) -> None:
            state, files = remote.remote(*job.store_arguments(), job.plan, job.parts, job.lease_seconds, item.id, after)
            pending[state] = item
            if item.cell is None and item.parts == 1:
                shared[item.owner_id] = files

        for item in (item for item in job.items if item.cell is None):
            submit(item)
        for item in (item for item in job.items if item.cell is not None):
            submit(item, shared.get(item.group.reference))
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=poll_seconds(job.lease_seconds))
            for ref in done:
                item = pending.pop(ref)
                state = self._result(job, item, ref)
                if state.is_final or state is State.FAILED:
                    finished(item, state)
                if not state.is_final:
                    submit(item)

    def _result(self, job: Job, item: Item, ref: Any) -> State:
        try:
            answer, text = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, self._ray.exceptions.RayError) else None
            if cause is None:
                raise ExecutorError(f"a task failed outside of its item: {error}") from error
            return State.WAITING  # its reference's worker was lost; the reference is being done again
        except self._ray.exceptions.RayError as error:
            failure = Failure(kind="lost", text=f"{type(error).__name__}: {error}", worker="ray")
            record_failure(job.store, item.id, failure)
            return State.FAILED
        if answer == "store":
            raise StoreError(text)
        return State(answer)


def run_task(
    url: str, options: dict[str, Any], plan: str, parts: int, lease_seconds: float, item_id: str, given: Any
) -> tuple[tuple[str, str], dict[str, Any] | None]:
    """What a Ray worker runs: its answer, and a reference's files for the cells that wait for it."""
    import time

    store = Store(url, **options)
    item = next(item for item in items_of(read_plan(store, plan), parts) if item.id == item_id)
    bench = _BENCHES.setdefault("", Bench())
    files: dict[str, Any] = {name: memoryview(data) for name, data in (given or {}).items()}
    try:
        state = perform(store, bench, item, this_process(), Watch(lease_seconds), files)
    except StoreError as error:
        return ("store", str(error)), None
    if state in (State.WAITING, State.BUSY):
        time.sleep(poll_seconds(lease_seconds))  # asked again at once, it would only turn in circles
    return (state.value, ""), _shared(store, item, state)


def _shared(store: Store, item: Item, state: State) -> dict[str, Any] | None:
    """A reference's files as arrays, which Ray hands on without a copy."""
    if item.cell is not None or item.parts > 1 or state not in (State.DONE, State.KEPT):
        return None
    files: dict[str, Any] = {}
    nbytes = 0
    for name in read_units(store, item.owner_id):
        data = store.read(name)
        if data is None:
            return None
        files[name] = np.frombuffer(data, dtype=np.uint8)
        nbytes += len(data)
        if nbytes > MOST_SHARED_NBYTES:
            return None
    return files
