"""One worker that takes whatever is free: a shard by hand, a Slurm job, a process that a scheduler restarts.

Any number of them may run at once on one store, started at any time and ended at any time. With a shard a worker takes
only its share of the cells, and the references that those need.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kvassay.errors import UsageError
from kvassay.scale.bench import Bench
from kvassay.scale.cell import Item, items_of
from kvassay.scale.claims import Watch, this_process
from kvassay.scale.executors.base import Finished, Job, poll_seconds
from kvassay.scale.failures import failed_items
from kvassay.scale.plans import read_plan
from kvassay.scale.state import State
from kvassay.scale.store import Store
from kvassay.scale.work import perform


class Shard(NamedTuple):
    """Number `index` of `count`, from 1."""

    index: int
    count: int

    def of(self, items: list[Item]) -> list[Item]:
        """Every count-th cell, and the references of their groups."""
        cells = [item for item in items if item.cell is not None]
        own = cells[self.index - 1 :: self.count]
        needed = {item.group.reference for item in own}
        references = [item for item in items if item.cell is None and item.owner_id in needed]
        return [*references, *own]


def parse_shard(text: str) -> Shard:
    """`3/16`; raises UsageError for anything else."""
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count) <= 1_000_000:
        return Shard(int(index), int(count))
    raise UsageError(f"--shard is {text!r}; expected a number and a count from 1, as in 3/16")


class PullExecutor:
    """Works in this process until everything that it was given is final."""

    def __init__(self, bench: Bench | None = None) -> None:
        self._bench = bench or Bench()

    def run(self, job: Job, finished: Finished) -> None:
        owner, watch = this_process(), Watch(job.lease_seconds)
        waiting = list(job.items)
        while waiting:
            # What workers were lost or failed at goes last, so that a cell which ends them all does not hold up others.
            tried = failed_items(job.store)
            waiting.sort(key=lambda item: tried[item.id].tries if item.id in tried else 0)
            left: list[Item] = []
            worked = False
            for item in waiting:
                state = perform(job.store, self._bench, item, owner, watch)
                worked |= state in (State.DONE, State.FAILED)
                if state.is_final or state is State.FAILED:
                    finished(item, state)
                if not state.is_final:
                    left.append(item)
            waiting = left
            if waiting and not worked:
                time.sleep(poll_seconds(job.lease_seconds))


def pull(
    url: str, options: dict[str, Any], plan: str, parts: int, lease_seconds: float, shard: Shard | None = None
) -> int:
    """What a scheduler runs on another machine: work until nothing is left. Returns the number of items done here."""
    store = Store(url, **options)
    items = items_of(read_plan(store, plan), parts)
    job = Job(store, plan, items if shard is None else shard.of(items), parts, lease_seconds)
    done = 0

    def count(_item: Item, state: State) -> None:
        nonlocal done
        done += state is State.DONE

    PullExecutor().run(job, count)
    return done
