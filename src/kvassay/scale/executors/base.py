"""What every way of running is given and gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kvassay.scale.cell import Item
from kvassay.scale.claims import LEASE_SECONDS
from kvassay.scale.state import State
from kvassay.scale.store import Store


class Job(NamedTuple):
    """A plan in a store, to be run to its end."""

    store: Store
    plan: str
    """Digest of the plan, by which workers on other machines read it."""
    items: Sequence[Item]
    parts: int = 1
    lease_seconds: float = LEASE_SECONDS

    def store_arguments(self) -> tuple[str, dict[str, Any]]:
        """With which a worker opens the store."""
        return self.store.url, self.store.options


Finished = Callable[[Item, State], None]
"""Told of each item that is final, and of each failed try."""


class Executor(Protocol):
    def run(self, job: Job, finished: Finished) -> None:
        """Return once every item is final. Raises StoreError where the store fails."""
        ...


def poll_seconds(lease_seconds: float) -> float:
    """How long to wait before others' work is looked at again."""
    return min(1.0, lease_seconds / 10)
