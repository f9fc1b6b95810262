"""A worker process of the local executor: takes items by pipe, one at a time, and says what became of each."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Any

from kvassay.errors import StoreError
from kvassay.scale.bench import Bench
from kvassay.scale.cell import items_of
from kvassay.scale.claims import Watch, this_process
from kvassay.scale.plans import read_plan
from kvassay.scale.store import Store
from kvassay.scale.work import perform


def serve(pipe: Connection, url: str, options: dict[str, Any], plan: str, parts: int, lease_seconds: float) -> None:
    """Until the pipe closes, which it also does when the coordinator is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the coordinator, which ends its workers
    store = Store(url, **options)
    items = {item.id: item for item in items_of(read_plan(store, plan), parts)}
    bench, owner, watch = Bench(), this_process(), Watch(lease_seconds)
    while True:
        try:
            item = items[pipe.recv()]
        except EOFError:
            return
        try:
            answer = (perform(store, bench, item, owner, watch).value, "")
        except StoreError as error:
            answer = ("store", str(error))
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
