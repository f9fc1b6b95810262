"""Workers that are killed at random, over and over, until the matrix is done all the same."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from kvassay.scale.bench import Bench
from kvassay.scale.cell import MatrixPlan, items_of
from kvassay.scale.claims import sweep_claims
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.plans import write_plan
from kvassay.scale.status import read_status
from kvassay.scale.store import Store


class Killed(NamedTuple):
    kills: int
    """Of workers that were at work."""
    results_sha256: str
    tries: int


def run_under_fire(
    plan: MatrixPlan, root: Path, kills: int, seed: int, workers: int = 2, parts: int = 1, longest_seconds: float = 1.0
) -> Killed:
    """Start `workers` at once on one store, kill each after a random time, and again; let them end after `kills`."""
    store = Store(str(root))
    digest = write_plan(store, plan)
    bench = Bench()
    bench.prepare(plan.groups[0])  # in the parent, so that a child begins with its work
    chance = random.Random(seed)
    killed = tries = 0
    while not read_status(store, plan.groups).complete:
        tries += 1
        children = [_worker(store, digest, plan, parts, bench) for _ in range(workers)]
        for child in children:
            # Short lives hit the first steps of an item, long ones its end and the next one's beginning.
            lifetime = longest_seconds * chance.random() ** 2
            if killed < kills and _dies_within(child, lifetime):
                killed += 1
        for child in children:
            _wait(child)
    store.sweep()
    sweep_claims(store)
    return Killed(killed, read_status(store, plan.groups).results_sha256, tries)


def _worker(store: Store, digest: str, plan: MatrixPlan, parts: int, bench: Bench) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        items = items_of(plan, parts)
        PullExecutor(bench).run(Job(store, digest, items, parts, 0.5), lambda _item, _state: None)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _dies_within(child: int, seconds: float) -> bool:
    """Kill a child after a time; false where it had ended by itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return True


def _wait(child: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"a worker ended with {code}"
