"""How long work tells of itself: stages with a known number of steps."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of each stage and step; the command line draws bars, a test counts."""

    def stage(self, name: str, steps: int) -> None: ...

    def step(self) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Progress for callers that want none."""

    def stage(self, name: str, steps: int) -> None: ...

    def step(self) -> None: ...

    def note(self, text: str) -> None: ...
