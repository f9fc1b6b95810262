"""Tries that failed. A cell that fails by itself three times is quarantined, and the rest goes on."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from kvassay.scale.store import Store

MOST_ERRORS = 3
"""Tries of one item that raised an error."""
MOST_LOSSES = 5
"""Tries in one run during which the worker vanished and its coordinator did not: mostly the machine's fault, sometimes
the cell's, which took all memory."""


class Failure(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["error", "lost", "abandoned"]
    """`abandoned` is a claim that nobody upheld any more, for whatever reason; it counts for nothing but the order."""
    text: str
    """The traceback, or how the worker ended."""
    worker: str


class Failures(NamedTuple):
    errors: int
    losses: int
    abandoned: int
    last: Failure | None

    @property
    def tries(self) -> int:
        return self.errors + self.losses + self.abandoned

    @property
    def quarantined(self) -> bool:
        return self.errors >= MOST_ERRORS or self.losses >= MOST_LOSSES


def record_failure(store: Store, item: str, failure: Failure) -> None:
    number = len(store.names(f"failures/{item}"))
    name = f"failures/{item}/{number:03}-{secrets.token_hex(4)}.json"
    store.put(name, json.dumps(failure.model_dump(), indent=2).encode())


def failures_of(store: Store, item: str) -> Failures:
    read = (store.read(f"failures/{item}/{name}") for name in store.names(f"failures/{item}"))
    found = [Failure.model_validate_json(data) for data in read if data is not None]
    kinds = Counter(failure.kind for failure in found)
    return Failures(kinds["error"], kinds["lost"], kinds["abandoned"], found[-1] if found else None)


def failed_items(store: Store) -> dict[str, Failures]:
    """Of every item that failed at least once."""
    return {item: failures_of(store, item) for item in store.names("failures")}


def forget_failures(store: Store, item: str, errors: bool) -> None:
    """Let an item be tried again. A new run forgets workers that were lost, and errors where its user says so."""
    found = failures_of(store, item)
    if errors or not found.errors:
        store.remove(f"failures/{item}")
