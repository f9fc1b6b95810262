"""Claims: who works on what, so that two workers seldom do the same; a result is right also where they do.

No clock of another machine is ever read. A claim holds a counter that its owner raises; whoever sees the same count for
a whole lease, by the own monotonic clock, takes the claim over. On the owner's machine a dead process is seen at once.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from pydantic import BaseModel, ConfigDict, ValidationError

from kvassay.scale.process import started, this_host
from kvassay.scale.store import Store

LEASE_SECONDS = 60.0


class Owner(BaseModel):
    """A process, named so that its own machine can tell whether it lives."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    pid: int
    started: str
    token: str

    @property
    def is_dead(self) -> bool:
        """True only where it is certain: same machine, and no such process any more."""
        return self.host == this_host() and started(self.pid) != self.started


class Claim(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: Owner
    beat: int


def this_process() -> Owner:
    return Owner(host=this_host(), pid=os.getpid(), started=started(os.getpid()) or "", token=secrets.token_hex(8))


class Held(Enum):
    """Whether a claim was got, and how."""

    NOT = 0
    FRESH = 1
    TAKEN_OVER = 2
    """From an owner that no longer upholds it."""


class Watch:
    """What one coordinator or worker has seen of others' claims, and when by its own clock."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._seen: dict[str, tuple[Claim, float]] = {}

    def is_stale(self, item: str, claim: Claim) -> bool:
        if claim.owner.is_dead:
            return True
        known = self._seen.get(item)
        if known is None or known[0] != claim:
            self._seen[item] = (claim, self._clock())
            return False
        return self._clock() - known[1] >= self.lease_seconds


@contextmanager
def claimed(store: Store, item: str, owner: Owner, watch: Watch) -> Iterator[Held]:
    """Hold the claim of an item during the block, which is told whether it is held."""
    held = _take(store, item, owner, watch)
    if held is Held.NOT:
        yield held
        return
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(store, item, owner, watch.lease_seconds, stop), daemon=True)
    beating.start()
    try:
        yield held
    finally:
        stop.set()
        beating.join()
        release(store, item, owner)


def release(store: Store, item: str, owner: Owner) -> None:
    """Give up a claim, if it is still this owner's."""
    held = read_claim(store, item)
    if held is not None and held.owner == owner:
        store.remove(_file(item))


def release_dead(store: Store, item: str) -> None:
    """Remove the claim of a process of this machine that has ended."""
    held = read_claim(store, item)
    if held is not None and held.owner.is_dead:
        store.remove(_file(item))


def sweep_claims(store: Store) -> None:
    """Remove all claims of processes of this machine that have ended: of those that were killed just after their item
    was finished nobody asks for the claim again."""
    for name in store.names("claims"):
        release_dead(store, name.removesuffix(".json"))


def read_claim(store: Store, item: str) -> Claim | None:
    data = store.read(_file(item))
    try:
        return None if data is None else Claim.model_validate_json(data)
    except ValidationError:
        store.remove(_file(item))
        return None


def _take(store: Store, item: str, owner: Owner, watch: Watch) -> Held:
    mine = Claim(owner=owner, beat=0).model_dump_json().encode()
    if store.put_new(_file(item), mine):
        return Held.FRESH
    held = read_claim(store, item)
    if held is None or not watch.is_stale(item, held):
        return Held.NOT  # one that has just gone is asked for again soon
    # Of two that take it over at once the later stays; should both go on, the store keeps one of two equal results.
    store.put(_file(item), mine)
    now = read_claim(store, item)
    return Held.TAKEN_OVER if now is not None and now.owner == owner else Held.NOT


def _beat(store: Store, item: str, owner: Owner, lease_seconds: float, stop: threading.Event) -> None:
    beat = 0
    while not stop.wait(lease_seconds / 4):
        held = read_claim(store, item)
        if held is None or held.owner != owner:
            return  # taken over while this process slept: its result is still good, the claim is not its own
        beat += 1
        store.put(_file(item), Claim(owner=owner, beat=beat).model_dump_json().encode())


def _file(item: str) -> str:
    return f"claims/{item}.json"
