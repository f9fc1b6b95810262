"""What became of an item."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    DONE = "done"
    """Measured now."""
    KEPT = "kept"
    """It was done before."""
    BUSY = "busy"
    """Another worker holds it."""
    WAITING = "waiting"
    """Its reference is not there yet."""
    FAILED = "failed"
    """It raised an error, which is recorded; it may be tried again."""
    QUARANTINED = "quarantined"
    """It failed too often, or its reference did."""

    @property
    def is_final(self) -> bool:
        return self in (State.DONE, State.KEPT, State.QUARANTINED)
