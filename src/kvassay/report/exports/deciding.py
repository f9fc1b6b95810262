"""What an export tells of a verdict: the clauses that decide, the controls, and how each came out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvassay.core.records import ClauseVerdict, ControlResult, FormatVerdict, Outcome, Role
from kvassay.pack.reader import PackContent


class Finding(NamedTuple):
    """One thing that a reader may ask about: a clause of an arm, an arm as a whole, or a control of the run."""

    group: str
    """The arm, or `controls`."""
    name: str
    outcome: Outcome
    reason: str
    clause: ClauseVerdict | None


WHOLE = "verdict"
CONTROLS = "controls"


def candidates(content: PackContent) -> list[FormatVerdict]:
    return [verdict for verdict in content.verdicts.formats if verdict.role is Role.CANDIDATE]


def deciding_clauses(verdict: FormatVerdict) -> list[ClauseVerdict]:
    """Without descriptive slices and waived clauses, which are judged and shown and have no weight."""
    return [
        clause
        for clause in verdict.clauses
        if clause.details.get("descriptive") is not True and clause.details.get("waived") is not True
    ]


def findings(content: PackContent) -> Iterator[Finding]:
    """Every candidate's deciding clauses and then its verdict; at the end the controls of the run.

    A verdict can be worse than each of its clauses (a control failed), so it is told besides.
    """
    for verdict in candidates(content):
        for clause in deciding_clauses(verdict):
            yield Finding(verdict.arm, clause_title(clause), clause.outcome, clause.reason, clause)
        yield Finding(verdict.arm, WHOLE, verdict.outcome, verdict.reason, None)
    for control in content.verdicts.controls:
        yield Finding(CONTROLS, control.name, control_outcome(control), control.reason, None)


def clause_title(clause: ClauseVerdict) -> str:
    return clause.clause if clause.slice == "all" else f"{clause.clause} [{clause.slice}]"


def control_outcome(control: ControlResult) -> Outcome:
    """A failed control makes evidence invalid; one that was not run shows nothing."""
    if control.passed is None:
        return Outcome.NOT_MEASURED
    return Outcome.MET if control.passed else Outcome.INVALID_EVIDENCE
