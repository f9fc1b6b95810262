"""Claims: one worker at a time where they hold, no clock of another machine, and no harm where they fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from kvassay.scale.claims import Claim, Held, Owner, Watch, claimed, read_claim, release_dead, this_process
from kvassay.scale.store import Store


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(str(tmp_path / "store"))


def elsewhere() -> Owner:
    """A process of another machine, of which nothing can be known."""
    return Owner(host="another machine", pid=1, started="1", token="b")


def put(store: Store, owner: Owner, beat: int = 0) -> None:
    store.put("claims/x.json", Claim(owner=owner, beat=beat).model_dump_json().encode())


def test_one_holds_and_the_other_does_not(store) -> None:
    with claimed(store, "x", this_process(), Watch()) as first:
        assert first is Held.FRESH
        with claimed(store, "x", this_process(), Watch()) as second:
            assert second is Held.NOT
        assert read_claim(store, "x") is not None
    assert read_claim(store, "x") is None


def test_a_claim_that_is_upheld_is_never_stale_and_one_that_is_not_becomes_so(store) -> None:
    clock = Clock()
    watch = Watch(60.0, clock)
    put(store, elsewhere())
    for beat in range(5):
        put(store, elsewhere(), beat)
        assert not watch.is_stale("x", Claim(owner=elsewhere(), beat=beat))
        clock.now += 50
    assert not watch.is_stale("x", Claim(owner=elsewhere(), beat=4))
    clock.now += 11
    assert watch.is_stale("x", Claim(owner=elsewhere(), beat=4))
    with claimed(store, "x", this_process(), watch) as held:
        assert held is Held.TAKEN_OVER


@pytest.mark.parametrize("skew_seconds", [-86400.0, 0.0, 86400.0])
def test_clock_skew_changes_nothing(store, skew_seconds, monkeypatch) -> None:
    """No wall clock is read: neither this machine's, nor times of files that another wrote."""
    monkeypatch.setattr(time, "time", lambda: 1e9 + skew_seconds)
    clock = Clock()
    watch = Watch(60.0, clock)
    put(store, elsewhere())
    os.utime(store.address("claims/x.json"), (1e9, 1e9 + skew_seconds))
    with claimed(store, "x", this_process(), watch) as held:
        assert held is Held.NOT
    clock.now += 61
    with claimed(store, "x", this_process(), watch) as held:
        assert held is Held.TAKEN_OVER


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def test_a_dead_process_of_this_machine_is_seen_at_once(store) -> None:
    child = forked(lambda: (put(store, this_process()), time.sleep(60)))
    while not store.exists("claims/x.json"):
        time.sleep(0.01)
    with claimed(store, "x", this_process(), Watch()) as held:
        assert held is Held.NOT
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with claimed(store, "x", this_process(), Watch()) as held:
        assert held is Held.TAKEN_OVER


def test_a_number_of_a_process_that_was_used_again_does_not_revive_a_claim(store) -> None:
    mine = this_process()
    put(store, mine.model_copy(update={"started": "1"}))
    release_dead(store, "x")
    assert read_claim(store, "x") is None


def test_a_worker_that_lost_its_claim_does_not_take_it_back(store) -> None:
    """It was stopped for longer than the lease, and another took over: it beats no more and removes nothing."""
    with claimed(store, "x", this_process(), Watch(lease_seconds=0.1)) as held:
        assert held is Held.FRESH
        put(store, elsewhere(), 7)
        time.sleep(0.2)
        now = read_claim(store, "x")
        assert now is not None
        assert (now.owner, now.beat) == (elsewhere(), 7)
    assert read_claim(store, "x") is not None


def test_a_holder_upholds_its_claim(store) -> None:
    with claimed(store, "x", this_process(), Watch(lease_seconds=0.08)):
        time.sleep(0.3)
        now = read_claim(store, "x")
        assert now is not None
        assert now.beat >= 2


def test_a_claim_that_nobody_can_read_is_removed(store) -> None:
    store.put("claims/x.json", b"{")
    assert read_claim(store, "x") is None
    with claimed(store, "x", this_process(), Watch()) as held:
        assert held is Held.FRESH
