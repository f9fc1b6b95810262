"""Every clause of every format with the figures that decided it, and the controls; the worst leads."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, ControlResult, FormatVerdict, Role
from kvassay.pack import layout
from kvassay.pack.reader import PackContent
from kvassay.pack.tables import clause_table, table_file
from kvassay.report.arrow_rows import Reads, stored_reads
from kvassay.report.figures import NOT_RECORDED, Figure, Shown, given, number
from kvassay.report.outcomes import ROLE_WORDS, Mark, control_mark, mark, severity

NOT_MEASURED = "not measured"
NO_BOUND = "no bound"


class ClauseRow(NamedTuple):
    clause: str
    slice: str
    mark: Mark
    decides: bool
    """False for a descriptive slice and for a waived clause."""
    weight: str
    n: Shown
    n_unit: str
    measured: bool
    estimate: Shown
    lower: Shown
    upper: Shown
    limit: Shown
    unit: str
    method: str
    reason: str
    details: tuple[tuple[str, Shown], ...]
    source: str
    """The file of the pack whose rows were judged."""


class ControlRow(NamedTuple):
    name: str
    mark: Mark
    reason: str


class FormatClauses(NamedTuple):
    arm: str
    role: str
    mark: Mark
    reason: str
    clauses: tuple[ClauseRow, ...]
    controls: tuple[ControlRow, ...]


class Engagement(NamedTuple):
    """How much an arm really read back from stored codes, and what it clipped."""

    arm: str
    role: str
    scale_source: str
    clipped: Shown
    encoded: Shown
    lowest_reads: Shown
    mean_reads: Shown
    highest_reads: Shown


def format_clauses(content: PackContent) -> list[FormatClauses]:
    """Worst format first; controls of the run are `run_controls`."""
    verdicts = sorted(content.verdicts.formats, key=lambda v: (v.role is not Role.CANDIDATE, severity(v.outcome)))
    return [_format(content.contract, verdict) for verdict in verdicts]


def run_controls(content: PackContent) -> list[ControlRow]:
    return _controls(content.verdicts.controls)


def engagement(content: PackContent) -> list[Engagement]:
    reads = stored_reads(content.tables.tokens)
    unread = Reads(None, None, None)
    return [
        Engagement(
            arm=arm.name,
            role=ROLE_WORDS[arm.role],
            scale_source=arm.scale_source or NOT_RECORDED,
            clipped=number(arm.clipped_values),
            encoded=number(arm.encoded_values),
            lowest_reads=number(reads.get(arm.name, unread).least),
            mean_reads=number(reads.get(arm.name, unread).mean),
            highest_reads=number(reads.get(arm.name, unread).most),
        )
        for arm in content.arms
    ]


def _format(contract: Contract, verdict: FormatVerdict) -> FormatClauses:
    clauses = sorted(verdict.clauses, key=lambda clause: severity(clause.outcome))
    return FormatClauses(
        arm=verdict.arm,
        role=ROLE_WORDS[verdict.role],
        mark=mark(verdict.outcome),
        reason=verdict.reason,
        clauses=tuple(_clause(contract, clause) for clause in clauses),
        controls=tuple(_controls(verdict.controls)),
    )


def _clause(contract: Contract, clause: ClauseVerdict) -> ClauseRow:
    measured = clause.estimate is not None
    table = clause_table(contract, clause.clause)
    weight = "descriptive" if clause.details.get("descriptive") is True else "decides"
    weight = "waived" if clause.details.get("waived") is True else weight
    return ClauseRow(
        clause=clause.clause,
        slice=clause.slice,
        mark=mark(clause.outcome),
        decides=weight == "decides",
        weight=weight,
        n=number(clause.n),
        n_unit=clause.n_unit,
        measured=measured,
        estimate=number(clause.estimate, digits=4) if measured else NOT_MEASURED,
        lower=_bound(clause.lower, measured),
        upper=_bound(clause.upper, measured),
        limit=given(clause.limit),
        unit=clause.unit,
        method=clause.method,
        reason=clause.reason,
        details=tuple(
            (name.replace("_", " "), _detail(value))
            for name, value in sorted(clause.details.items())
            if name not in ("descriptive", "waived")
        ),
        source=layout.LEDGERS if table is None else table_file(table),
    )


def _bound(value: float | None, measured: bool) -> Shown:
    """A bound is absent where nothing was measured, and where the evidence bounds nothing on that side."""
    if value is None:
        return NO_BOUND if measured else NOT_MEASURED
    return number(value, digits=4)


def _detail(value: float | int | str | bool | None) -> Shown:
    if isinstance(value, bool):
        return Figure("yes" if value else "no", str(value).lower())
    return value if isinstance(value, str) else number(value, digits=4)


def _controls(controls: tuple[ControlResult, ...]) -> list[ControlRow]:
    """Failed controls first."""
    ordered = sorted(controls, key=lambda control: control_mark(control).severity)
    return [ControlRow(control.name, control_mark(control), control.reason) for control in ordered]
