"""How an outcome is shown: a symbol and a word beside the colour, never the colour alone."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import ControlResult, Outcome, Role


class Mark(NamedTuple):
    symbol: str
    word: str
    css_class: str
    severity: int
    """0 is worst; sections that lead with the worst sort by it."""


MARKS: dict[Outcome, Mark] = {
    Outcome.BREACHED: Mark("✕", "BREACHED", "breached", 0),
    Outcome.INVALID_EVIDENCE: Mark("!", "INVALID", "invalid", 1),
    Outcome.INCONCLUSIVE: Mark("?", "INCONCLUSIVE", "inconclusive", 2),
    Outcome.NOT_MEASURED: Mark("–", "NOT MEASURED", "unmeasured", 3),
    Outcome.MET: Mark("✓", "MET", "met", 4),
}

EXPLANATIONS: dict[Outcome, str] = {
    Outcome.MET: "the whole confidence bound lies inside what the contract allows",
    Outcome.BREACHED: "the whole confidence bound lies outside what the contract allows",
    Outcome.INCONCLUSIVE: "not shown either way: too little evidence, or a control of the run failed",
    Outcome.NOT_MEASURED: "no rows exist",
    Outcome.INVALID_EVIDENCE: "rows exist and may not be used; the reason stands with the format",
}

ROLE_WORDS: dict[Role, str] = {
    Role.CANDIDATE: "candidate",
    Role.CANARY: "canary (known bad, must be breached)",
    Role.REFERENCE_AGAIN: "reference against itself",
}


def mark(outcome: Outcome) -> Mark:
    return MARKS[outcome]


def severity(outcome: Outcome) -> int:
    return MARKS[outcome].severity


def control_mark(control: ControlResult) -> Mark:
    if control.passed is None:
        return Mark("–", "NOT RUN", "unmeasured", 1)
    return Mark("✓", "PASSED", "met", 2) if control.passed else Mark("✕", "FAILED", "breached", 0)
