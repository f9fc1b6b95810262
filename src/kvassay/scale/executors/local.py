"""Processes of this machine, as many as its cores and memory take.

A worker keeps its model between cells, so items of the model that a worker has go first. Workers are forked from a
server that has the libraries loaded and no model, so one more costs no second import.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from kvassay.errors import ExecutorError, StoreError
from kvassay.scale.cell import Group, Item
from kvassay.scale.claims import release_dead
from kvassay.scale.executors.base import Finished, Job, poll_seconds
from kvassay.scale.failures import Failure, failures_of, record_failure
from kvassay.scale.process import available_memory_nbytes
from kvassay.scale.state import State
from kvassay.scale.work import state_before

Need = Callable[[Group], int]
"""Bytes of memory that a worker takes which runs cells of a group."""


class _Worker:
    def __init__(self, context: Any, job: Job, group: Group, need_nbytes: int) -> None:
        from kvassay.scale.worker import serve

        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.model = _model_of(group)
        self.need_nbytes = need_nbytes
        self.item: Item | None = None
        arguments = (theirs, *job.store_arguments(), job.plan, job.parts, job.lease_seconds)
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, item: Item) -> None:
        self.item = item
        try:
            self.pipe.send(item.id)
        except OSError:
            return  # it has ended, which its sentinel tells too

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class LocalExecutor:
    def __init__(self, workers: int | None = None, memory_nbytes: int | None = None, need: Need | None = None) -> None:
        """`workers` at most (default: cores over threads of a cell), within `memory_nbytes` (default: what is free)."""
        self._most = workers
        self._memory = memory_nbytes
        self._need: Need = need or (lambda _group: 0)

    def run(self, job: Job, finished: Finished) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["kvassay.scale.worker"])
        _Run(self, context, job, finished).to_the_end()

    def room(self, group: Group, workers: list[_Worker]) -> bool:
        """Whether one more worker for a group fits; the first always does, since else nothing would ever run."""
        if not workers:
            return True
        most = self._most or max(1, (os.cpu_count() or 1) // group.threads)
        if len(workers) >= most:
            return False
        taken = sum(worker.need_nbytes for worker in workers)
        return taken + self._need(group) <= self.memory_nbytes()

    def memory_nbytes(self) -> int:
        if self._memory is None:
            self._memory = available_memory_nbytes()
        return self._memory

    def need_nbytes(self, group: Group) -> int:
        return self._need(group)


class _Run:
    """One run of a job."""

    def __init__(self, executor: LocalExecutor, context: Any, job: Job, finished: Finished) -> None:
        self._executor = executor
        self._context = context
        self._job = job
        self._finished = finished
        self._waiting = list(job.items)
        self._workers: list[_Worker] = []
        self._later: dict[str, float] = {}
        """When an item that could not be done is to be tried again, by the monotonic clock."""

    def to_the_end(self) -> None:
        try:
            while self._waiting or any(worker.item for worker in self._workers):
                self._dispatch()
                self._listen()
        finally:
            for worker in self._workers:
                worker.end()

    def _dispatch(self) -> None:
        """Give every worker that is free an item, and start workers while there is room for them."""
        for worker in [worker for worker in self._workers if worker.item is None]:
            item = self._next(worker.model)
            if item is not None:
                worker.give(item)
            elif not any(_model_of(item.group) == worker.model for item in self._waiting):
                self._end(worker)  # what it holds is wanted for others
        while (item := self._next(None)) is not None:
            idle = next((worker for worker in self._workers if worker.item is None), None)
            if not self._executor.room(item.group, self._workers):
                if idle is None:
                    self._waiting.insert(0, item)
                    return
                self._end(idle)  # it waits for a reference, and this item need not
            worker = _Worker(self._context, self._job, item.group, self._executor.need_nbytes(item.group))
            self._workers.append(worker)
            worker.give(item)

    def _end(self, worker: _Worker) -> None:
        worker.end()
        self._workers.remove(worker)

    def _next(self, model: str | None) -> Item | None:
        """The next item that can be done now, of a model if one is named; what is final already is told and dropped."""
        now = time.monotonic()
        for item in list(self._waiting):
            if model is not None and _model_of(item.group) != model:
                continue
            if self._later.get(item.id, 0.0) > now:
                continue
            state = state_before(self._job.store, item, self._job.parts)
            if state is State.WAITING:
                self._postpone(item)
                continue
            self._waiting.remove(item)
            if state is None or (state is State.KEPT and item.parts > 1):
                return item  # a part that is kept may still have to be put together with others
            self._finished(item, state)
        return None

    def _listen(self) -> None:
        """Until a worker answers or ends, or it is time to look again."""
        pipes = {worker.pipe: worker for worker in self._workers}
        ready = wait(list(pipes), timeout=poll_seconds(self._job.lease_seconds))
        for pipe in ready:
            worker = pipes[pipe]  # pyright: ignore[reportArgumentType]  (only pipes are waited for)
            try:
                answer, text = worker.pipe.recv()
            except (EOFError, OSError):
                self._lost(worker)
                continue
            if answer == "store":
                raise StoreError(text)
            item, worker.item = worker.item, None
            assert item is not None, "only a worker that has an item answers"
            self._told(item, State(answer))

    def _told(self, item: Item, state: State) -> None:
        if state.is_final or state is State.FAILED:
            self._finished(item, state)
        if state.is_final:
            self._later.clear()  # what waited for it may go on
        else:
            self._waiting.append(item)
            if state is not State.FAILED:
                self._postpone(item)

    def _lost(self, worker: _Worker) -> None:
        """A worker ended while it had an item, or before it took one."""
        worker.process.join()
        self._workers.remove(worker)
        item = worker.item
        if item is None:
            return
        code = worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        release_dead(self._job.store, item.id)
        failure = Failure(kind="lost", text=f"the worker ended by {how}", worker=f"process {worker.process.pid}")
        record_failure(self._job.store, item.id, failure)
        self._finished(item, State.FAILED)
        self._waiting.append(item)
        if failures_of(self._job.store, item.id).losses > 100:
            raise ExecutorError(f"workers end at once, last by {how}; see {self._job.store.url}/failures/{item.id}")

    def _postpone(self, item: Item) -> None:
        self._later[item.id] = time.monotonic() + poll_seconds(self._job.lease_seconds)


def _model_of(group: Group) -> str:
    return f"{group.model.weights_sha256} {group.threads}"
