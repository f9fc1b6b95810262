"""From clauses to formats, and from formats to the outcome of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.records import ExitCode, FormatVerdict, Outcome, Role
from kvassay.judge.arm_clauses import JudgedArm
from kvassay.judge.judged import JudgedClause
from kvassay.judge.wording import counted, figure, outcome_words
from kvassay.stats.multiplicity import fixed_sequence, holm


class Conclusion(NamedTuple):
    outcome: Outcome
    reason: str


class Overall(NamedTuple):
    outcome: Outcome
    exit_code: ExitCode
    reason: str


def conclude(clauses: Sequence[JudgedClause]) -> Conclusion:
    """Outcome of one format from its decisive clauses: MET needs all of them, BREACHED any one."""
    decisive = [clause for clause in clauses if clause.decisive]
    if not decisive:
        return Conclusion(Outcome.INCONCLUSIVE, "no clause decides: every one is waived")
    for outcome in (Outcome.BREACHED, Outcome.INVALID_EVIDENCE):
        if found := [clause for clause in decisive if clause.outcome is outcome]:
            return Conclusion(outcome, _first(found, len(decisive)))
    missing = [clause for clause in decisive if clause.outcome is Outcome.NOT_MEASURED]
    if len(missing) == len(decisive):
        return Conclusion(Outcome.NOT_MEASURED, _first(missing, len(decisive)))
    open_clauses = [clause for clause in decisive if clause.outcome is Outcome.INCONCLUSIVE]
    if open_clauses or missing:
        return Conclusion(Outcome.INCONCLUSIVE, _first([*open_clauses, *missing], len(decisive)))
    waived = len({clause.verdict.clause for clause in clauses if clause.verdict.details.get("waived") is True})
    besides = f"; {counted(waived, 'clauses')} waived" if waived else ""
    return Conclusion(Outcome.MET, f"all {counted(len(decisive), 'clauses')} met{besides}")


def format_verdicts(contract: Contract, candidates: Sequence[JudgedArm]) -> tuple[FormatVerdict, ...]:
    """Candidates in the contract's order, with its multiplicity rule applied to their claims of MET."""
    alone = [conclude(one.clauses) for one in candidates]
    if contract.candidates.multiplicity == "fixed-sequence":
        final = _in_sequence(candidates, alone)
    else:
        final = _with_holm(candidates, alone, contract.inference.alpha)
    return tuple(format_verdict(one, conclusion) for one, conclusion in zip(candidates, final, strict=True))


def format_verdict(one: JudgedArm, conclusion: Conclusion) -> FormatVerdict:
    return FormatVerdict(
        arm=one.arm.name,
        role=one.arm.role,
        format_digest=one.arm.format_digest,
        outcome=conclusion.outcome,
        reason=conclusion.reason,
        clauses=tuple(clause.verdict for clause in one.clauses),
        controls=one.controls,
    )


def overall(formats: Sequence[FormatVerdict]) -> Overall:
    """Candidates alone decide; canary and A/A never count."""
    candidates = [verdict for verdict in formats if verdict.role is Role.CANDIDATE]
    by_outcome = {outcome: [v.arm for v in candidates if v.outcome is outcome] for outcome in Outcome}
    # Names of formats hold commas, so they are quoted.
    tally = "; ".join(
        f"{len(names)} of {len(candidates)} {outcome_words(outcome)}: {', '.join(map(repr, names))}"
        for outcome, names in by_outcome.items()
        if names
    )
    if by_outcome[Outcome.BREACHED]:
        return Overall(Outcome.BREACHED, ExitCode.BREACHED, tally)
    if candidates and len(by_outcome[Outcome.MET]) == len(candidates):
        return Overall(Outcome.MET, ExitCode.MET, tally)
    if by_outcome[Outcome.INVALID_EVIDENCE]:
        return Overall(Outcome.INVALID_EVIDENCE, ExitCode.INCONCLUSIVE, tally)
    if len(by_outcome[Outcome.NOT_MEASURED]) == len(candidates):
        return Overall(Outcome.NOT_MEASURED, ExitCode.INCONCLUSIVE, tally or "no candidate was run")
    return Overall(Outcome.INCONCLUSIVE, ExitCode.INCONCLUSIVE, tally)


def _first(found: Sequence[JudgedClause], decisive: int) -> str:
    """The first clause of a kind with its reason, and how many of all there are."""
    verdict = found[0].verdict
    name = verdict.clause if verdict.slice == "all" else f"{verdict.clause} in slice {verdict.slice!r}"
    more = f" ({len(found)} of {decisive} clauses)" if len(found) > 1 else ""
    return f"{name} {outcome_words(verdict.outcome)}{more}: {verdict.reason}"


def _in_sequence(candidates: Sequence[JudgedArm], alone: Sequence[Conclusion]) -> list[Conclusion]:
    sequence = fixed_sequence([conclusion.outcome is Outcome.MET for conclusion in alone])
    final: list[Conclusion] = []
    for conclusion, stands in zip(alone, sequence.claims, strict=True):
        if conclusion.outcome is not Outcome.MET or stands or sequence.stopped_at is None:
            final.append(conclusion)
            continue
        stopper, why = candidates[sequence.stopped_at].arm.name, alone[sequence.stopped_at].outcome
        reason = (
            f"would be met alone ({conclusion.reason}), but the fixed sequence stopped at {stopper!r}, which is "
            f"{outcome_words(why)}"
        )
        final.append(Conclusion(Outcome.INCONCLUSIVE, reason))
    return final


def _with_holm(candidates: Sequence[JudgedArm], alone: Sequence[Conclusion], alpha: float) -> list[Conclusion]:
    """Each format's p value is the largest among its decisive clauses (intersection-union)."""
    p_values = [
        max([clause.p_met if clause.p_met is not None else 1.0 for clause in one.clauses if clause.decisive])
        if conclusion.outcome is Outcome.MET
        else 1.0
        for one, conclusion in zip(candidates, alone, strict=True)
    ]
    final: list[Conclusion] = []
    for conclusion, adjusted in zip(alone, holm(p_values), strict=True):
        if conclusion.outcome is Outcome.MET and adjusted > alpha:
            reason = (
                f"would be met alone ({conclusion.reason}), but not after Holm over {len(candidates)} formats "
                f"(adjusted p = {figure(adjusted)})"
            )
            final.append(Conclusion(Outcome.INCONCLUSIVE, reason))
        else:
            final.append(conclusion)
    return final
