"""Progress for people: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from kvassay.cli.output import say

PLAIN_LINE_SECONDS = 15.0
"""At most one plain line in this time, so that a log stays short."""


class ProgressDisplay:
    """Draws on stderr. Use it as a context manager, so that the bar is removed also after an error."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = None
        self._task = None
        self._stage = ""
        self._steps = self._done = 0
        self._last_line = 0.0

    def __enter__(self) -> ProgressDisplay:
        if sys.stderr.isatty() and not self._quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, name: str, steps: int) -> None:
        self._stage, self._steps, self._done = name, steps, 0
        self._last_line = self._began = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(name, total=steps)
        elif not self._quiet:
            say(f"{name}: 0 of {steps}")

    def step(self) -> None:
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
            return
        now = time.monotonic()
        finished = self._done == self._steps
        if not self._quiet and (finished or now - self._last_line >= PLAIN_LINE_SECONDS):
            self._last_line = now
            left = (now - self._began) / self._done * (self._steps - self._done)
            tail = f"{now - self._began:.0f} s" if finished else f"about {left:.0f} s left"
            say(f"{self._stage}: {self._done} of {self._steps}, {tail}")

    def note(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text)
        elif not self._quiet:
            say(text)
