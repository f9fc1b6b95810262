"""Looking for inputs that a parser neither accepts nor refuses by name."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from benchmarks.fuzz.bounded import Outcome, run_bounded
from benchmarks.fuzz.mutations import Mutation
from benchmarks.fuzz.parsers import Parser

ROUND = 200
"""Examples of one hypothesis run; a longer hunt makes several, each with its own seed."""


class Finding(NamedTuple):
    parser: str
    status: str
    message: str
    path: Path | None
    """Folder of the smallest input that was found for it."""


class Hunt(NamedTuple):
    parser: str
    cases: int
    outcomes: dict[str, int]
    seconds: float
    findings: tuple[Finding, ...]


class _FoundError(Exception):
    """So that hypothesis shrinks the input."""


class _Cases:
    """One parser's valid input, and copies of it that are mutated and read."""

    def __init__(self, name: str, parser: Parser, folder: Path) -> None:
        self.name, self.parser = name, parser
        self._valid, self._case = folder / "valid", folder / "case"
        self._valid.mkdir()
        self._file = parser.seed(self._valid).relative_to(self._valid)
        self._bytes = (self._valid / self._file).read_bytes()
        self.outcomes: Counter[str] = Counter()
        # What a parser imports when it is first used is imported here once, and not in every child.
        parser.read(self._valid / self._file)
        self.last: tuple[Outcome, bytes] | None = None

    def check_seed(self) -> None:
        """The valid input must be accepted, or mutations of it would say nothing."""
        outcome = self.run(lambda data: data)
        if outcome.status != "accepted":
            raise AssertionError(f"{self.name}: its valid input is {outcome.status}: {outcome.message}")
        self.outcomes.clear()

    def run(self, mutation: Mutation) -> Outcome:
        shutil.rmtree(self._case, ignore_errors=True)
        shutil.copytree(self._valid, self._case)
        data = mutation(self._bytes)
        file = self._case / self._file
        file.write_bytes(data)
        outcome = run_bounded(lambda: self._read(file))
        match outcome.value:
            case [str(), *_]:  # a verification that caught an exception of our own
                outcome = outcome._replace(status="fault", message="; ".join(outcome.value))
        self.outcomes[outcome.status] += 1
        self.last = outcome, data
        return outcome

    def _read(self, file: Path) -> Any:
        if self.parser.refit is not None:
            with suppress(Exception):
                self.parser.refit(file)
        return self.parser.read(file)


def hunt(name: str, parser: Parser, examples: int, seconds: float | None, first_seed: int, out: Path | None) -> Hunt:
    """Runs of `ROUND` examples until `examples` ran or `seconds` went by; the same seed gives the same examples."""
    begin = time.monotonic()
    findings: dict[str, Finding] = {}
    with tempfile.TemporaryDirectory(prefix="kvassay-fuzz-") as folder:
        cases = _Cases(name, parser, Path(folder))
        cases.check_seed()
        number = 0
        while sum(cases.outcomes.values()) < examples and (seconds is None or time.monotonic() - begin < seconds):
            left = min(ROUND, examples - sum(cases.outcomes.values()))
            found = _round(cases, left, first_seed + number, None if seconds is None else begin + seconds)
            number += 1
            if found is not None:
                kept = _keep(out, name, *found)
                findings.setdefault(_place(found[0]), kept)
    took = time.monotonic() - begin
    return Hunt(name, sum(cases.outcomes.values()), dict(cases.outcomes), took, tuple(findings.values()))


def _round(cases: _Cases, examples: int, seed: int, end: float | None) -> tuple[Outcome, bytes] | None:
    """The smallest input of the first finding of a run; None where there is none."""
    found: list[tuple[Outcome, bytes]] = []

    @seeded(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(mutation=cases.parser.mutations())
    def attempt(mutation: Mutation) -> None:
        if end is not None and time.monotonic() > end:
            return
        outcome = cases.run(mutation)
        if not outcome.sound:
            assert cases.last is not None, "run sets it"
            found.append(cases.last)
            raise _FoundError(_place(outcome))

    # A finding that depends on the load of the machine is one all the same.
    with suppress(_FoundError, Flaky):
        attempt()
    return min(found, key=lambda each: len(each[1])) if found else None


def _place(outcome: Outcome) -> str:
    """What tells two findings apart: how it ended, and the last line of its traceback's place."""
    lines = [line.strip() for line in outcome.message.splitlines() if line.strip().startswith("File ")]
    return f"{outcome.status} {outcome.error} {lines[-1] if lines else ''}"


def _keep(out: Path | None, name: str, outcome: Outcome, data: bytes) -> Finding:
    if out is None:
        return Finding(name, outcome.status, outcome.message, None)
    folder = out / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "input").write_bytes(data)
    (folder / "outcome.txt").write_text(f"{outcome.status} {outcome.error}\n{outcome.message}\n")
    return Finding(name, outcome.status, outcome.message, folder)
