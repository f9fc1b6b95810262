"""Slurm through submitit: an array of workers, each of which takes whatever is free until nothing is left.

Nothing is assigned to a job beforehand, so a lost node costs what it was doing and its claims lapse, a job that starts
late finds less to do, and jobs that end by their time limit are followed by others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvassay.errors import ExecutorError, MissingExtraError
from kvassay.scale.executors.base import Finished, Job, poll_seconds
from kvassay.scale.executors.pull import pull
from kvassay.scale.state import State
from kvassay.scale.work import state_before

MOST_IDLE_ROUNDS = 3
"""Rounds of jobs that all end without finishing an item, after which something else is wrong."""


class SlurmExecutor:
    def __init__(
        self, folder: Path, workers: int, parameters: Mapping[str, Any] | None = None, cluster: str | None = None
    ) -> None:
        """`folder` takes submitit's scripts and logs, and must be visible to all nodes. `parameters` are submitit's
        (`timeout_min`, `slurm_partition`, `mem_gb`, ...); `cluster` is found out, or `local` for processes here."""
        try:
            import submitit
        except ImportError as error:
            raise MissingExtraError("--executor slurm needs submitit: pip install 'kvassay[slurm]'") from error
        self._workers = workers
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            given = {"timeout_min": 24 * 60, "name": "kvassay", **(parameters or {})}
            self._executor.update_parameters(**given)
        except Exception as error:  # submitit raises kinds of its own for names it does not know
            raise ExecutorError(f"submitit does not take these settings: {error}") from error
        self._jobs: list[Any] = []

    def run(self, job: Job, finished: Finished) -> None:
        waiting = list(job.items)
        idle = 0
        try:
            while waiting:
                if all(each.done() for each in self._jobs):
                    if self._jobs and idle >= MOST_IDLE_ROUNDS:
                        raise ExecutorError(self._no_progress(len(waiting)))
                    idle += 1
                    self._submit(job, min(self._workers, len(waiting)))
                left = []
                for item in waiting:
                    state = state_before(job.store, item, job.parts)
                    if state is not None and state.is_final:
                        idle = 0
                        finished(item, State.DONE if state is State.KEPT else state)
                    else:
                        left.append(item)
                waiting = left
                if waiting:
                    time.sleep(poll_seconds(job.lease_seconds))
        finally:
            for each in self._jobs:
                if not each.done():
                    each.cancel()

    def _submit(self, job: Job, workers: int) -> None:
        arguments = (*job.store_arguments(), job.plan, job.parts, job.lease_seconds)
        try:
            with self._executor.batch():
                self._jobs = [self._executor.submit(pull, *arguments) for _ in range(workers)]
        except Exception as error:
            raise ExecutorError(f"the jobs cannot be submitted: {error}") from error

    def _no_progress(self, left: int) -> str:
        last = self._jobs[0]
        text = last.stderr() or last.stdout() or "it wrote nothing"
        tail = " ".join(text.split())[-500:]
        return (
            f"{MOST_IDLE_ROUNDS} rounds of jobs ended without finishing one of {left} items; job {last.job_id} said: "
            f"{tail} (logs in {last.paths.folder})"
        )
