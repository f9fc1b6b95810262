"""Over all models of a matrix: the smallest format that met each workload, and in how many of its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.core.records import Outcome, Role
from kvassay.scale.merge import Merged


class Point(NamedTuple):
    """A format of one model on one workload."""

    model: str
    workload: str
    setting_sha256: str
    """Of `Group.setting_sha256`: seeds of one setting count together, and no others."""
    format: str
    bits: float
    """Stored bits per value, the same for every seed."""
    seeds: int
    met: int
    """Seeds at which it met the contract."""
    outcomes: tuple[str, ...]
    on_frontier: bool
    """The smallest of its setting that met the contract at every seed; there may be none."""

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "outcomes": list(self.outcomes)}


def frontier(merged: Sequence[Merged]) -> list[Point]:
    """Points by model, workload and setting, from large to small.

    A store may hold a workload under several settings: a bound was edited, a format added, a package updated. Each has
    points of its own.
    """
    outcomes: dict[tuple[str, str, str, str], list[str]] = {}
    bits: dict[tuple[str, str, str, str], float] = {}
    for pack in merged:
        setting = (pack.group.model.name, pack.group.workload, pack.group.setting_sha256)
        for verdict in pack.verdicts.formats:
            if verdict.role is Role.CANDIDATE:
                key = (*setting, verdict.arm)
                outcomes.setdefault(key, []).append(verdict.outcome.value)
                bits[key] = pack.bits[verdict.arm]
    smallest: dict[tuple[str, str, str], float] = {}
    for key, found in outcomes.items():
        if all(outcome == Outcome.MET.value for outcome in found):
            smallest[key[:3]] = min(smallest.get(key[:3], bits[key]), bits[key])
    return [
        Point(
            *key,
            bits=bits[key],
            seeds=len(found),
            met=sum(outcome == Outcome.MET.value for outcome in found),
            outcomes=tuple(found),
            on_frontier=bits[key] == smallest.get(key[:3]) and all(one == Outcome.MET.value for one in found),
        )
        for key, found in sorted(outcomes.items(), key=lambda each: (*each[0][:3], -bits[each[0]]))
    ]


def ambiguous_workloads(points: Sequence[Point]) -> set[tuple[str, str]]:
    """Models and workloads of which there are several settings."""
    settings: dict[tuple[str, str], set[str]] = {}
    for point in points:
        settings.setdefault((point.model, point.workload), set()).add(point.setting_sha256)
    return {key for key, found in settings.items() if len(found) > 1}
