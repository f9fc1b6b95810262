"""The result of a verification: named checks, each with one sentence.

A check's name is a stable identifier, so that a script can ask for it: `file-hash: rows/tokens.parquet`,
`contract-hash`, `rejudge`. docs/spec/evidence-pack.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvassay.errors import printable


class Check(NamedTuple):
    name: str
    passed: bool
    sentence: str


class Verification(NamedTuple):
    """All checks of one folder. `root` is the digest of what its manifest says now, not the one it claims."""

    schema: str
    root: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)

    def to_json(self) -> dict[str, object]:
        return {
            "schema": self.schema,
            "root": self.root,
            "passed": self.passed,
            "checks": [check._asdict() for check in self.checks],
        }


def printable_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """The checks with unprintable characters escaped: names in a hostile folder must not steer a terminal."""
    return tuple(Check(printable(check.name), check.passed, printable(check.sentence)) for check in checks)
