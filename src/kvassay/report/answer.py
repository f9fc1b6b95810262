"""The answer: which candidates meet the contract, what each stores, and what each loses."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import ClauseVerdict, FormatVerdict, Outcome, Role
from kvassay.pack.reader import PackContent
from kvassay.report.clause_tables import NO_BOUND
from kvassay.report.figures import NOT_RECORDED, Shown, number, percent, points, significant, size
from kvassay.report.ledger_figures import LedgerFigures, leading_ledger, ledger_figures
from kvassay.report.outcomes import MARKS, Mark, mark
from kvassay.report.token_summary import ALL, KlSummary, summarise_kl

KL_MEAN = "fidelity.kl_mean"


class Interval(NamedTuple):
    """An estimate with its one-sided bounds; `allowed` is None where the contract does not bound it."""

    estimate: Shown
    lower: Shown
    upper: Shown
    allowed: Shown | None


class TaskCell(NamedTuple):
    task: str
    loss: Interval | None


class AnswerRow(NamedTuple):
    arm: str
    mark: Mark
    reason: str
    is_smallest_met: bool
    stored_bits: Shown
    share_of_16_bit: Shown
    nbytes_per_token: Shown
    basis: str
    kl: Interval | None
    tasks: tuple[TaskCell, ...]


class Answer(NamedTuple):
    headline: str
    mark: Mark
    overall_reason: str
    exit_code: int
    rows: tuple[AnswerRow, ...]
    tasks: tuple[str, ...]
    interval_level: Shown
    one_sided_level: Shown


class MeanKl(NamedTuple):
    """Mean KL of an arm in nats per token, from its clause, or from its rows where the contract has no such clause."""

    estimate: float
    lower: float | None
    upper: float | None
    limit: float | None


def answer(content: PackContent) -> Answer:
    smallest = smallest_met(content)
    candidates = [verdict for verdict in content.verdicts.formats if verdict.role is Role.CANDIDATE]
    kl = mean_kl(content)
    figures = arm_figures(content)
    tasks = tuple(sorted(content.contract.task))
    # Smallest first, so that the reader meets the answer in the order of the question; unmeasured ones come last.
    ordered = sorted(candidates, key=lambda v: figures[v.arm].stored_bits if v.arm in figures else float("inf"))
    alpha = content.contract.inference.alpha
    return Answer(
        headline=_headline(content, candidates, smallest, figures, kl),
        mark=mark(content.verdicts.outcome),
        overall_reason=content.verdicts.reason,
        exit_code=content.verdicts.exit_code,
        rows=tuple(_row(v, v is smallest, figures.get(v.arm), kl.get(v.arm), tasks) for v in ordered),
        tasks=tasks,
        interval_level=percent(1 - 2 * alpha),
        one_sided_level=percent(1 - alpha),
    )


def arm_figures(content: PackContent) -> dict[str, LedgerFigures]:
    return {arm: ledger_figures(arm, leading_ledger(pair)) for arm, pair in content.ledgers.items()}


def smallest_met(content: PackContent) -> FormatVerdict | None:
    """The candidate of fewest stored bits among those that are MET; None where none is or none has a ledger."""
    figures = arm_figures(content)
    met = [
        verdict
        for verdict in content.verdicts.formats
        if verdict.role is Role.CANDIDATE and verdict.outcome is Outcome.MET and verdict.arm in figures
    ]
    return min(met, key=lambda verdict: figures[verdict.arm].stored_bits, default=None)


def mean_kl(content: PackContent) -> dict[str, MeanKl]:
    """Mean KL by arm, for every arm that has token rows."""
    found = {
        summary.arm: MeanKl(summary.mean_nats, summary.lower_nats, summary.upper_nats, None)
        for summary in _summaries(content)
        if summary.mean_nats is not None
    }
    for verdict in content.verdicts.formats:
        clause = whole_clause(verdict, KL_MEAN)
        if clause is None:
            continue
        found.pop(verdict.arm, None)
        # A clause without an estimate rests on rows that may not be used, so they give no figure here either.
        if clause.estimate is not None:
            found[verdict.arm] = MeanKl(clause.estimate, clause.lower, clause.upper, clause.limit)
    return found


def whole_clause(verdict: FormatVerdict, name: str) -> ClauseVerdict | None:
    """The clause of that name over the whole, not one slice of it."""
    return next((clause for clause in verdict.clauses if clause.clause == name and clause.slice == ALL), None)


def task_loss(clause: ClauseVerdict) -> Interval:
    """A task clause as a loss of accuracy, in points.

    A clause of a change (candidate − reference) has a negative limit; its sign is turned, and its bounds change places.
    """
    if clause.limit < 0:
        estimate, lower, upper = (_negated(clause.estimate), _negated(clause.upper), _negated(clause.lower))
    else:
        estimate, lower, upper = clause.estimate, clause.lower, clause.upper
    bounds = (points(bound) if bound is not None else NO_BOUND for bound in (lower, upper))
    return Interval(points(estimate), *bounds, points(abs(clause.limit)))


def _bound(value: float | None) -> Shown:
    return NO_BOUND if value is None else number(value)


def _negated(value: float | None) -> float | None:
    return None if value is None else 0.0 - value


def _summaries(content: PackContent) -> list[KlSummary]:
    return summarise_kl(content.tables.tokens, content.contract, [arm.name for arm in content.arms])


def _row(
    verdict: FormatVerdict,
    is_smallest_met: bool,
    figures: LedgerFigures | None,
    kl: MeanKl | None,
    tasks: tuple[str, ...],
) -> AnswerRow:
    return AnswerRow(
        arm=verdict.arm,
        mark=mark(verdict.outcome),
        reason=verdict.reason,
        is_smallest_met=is_smallest_met,
        stored_bits=number(figures.stored_bits, digits=4) if figures else NOT_RECORDED,
        share_of_16_bit=percent(figures.share_of_16_bit) if figures else NOT_RECORDED,
        nbytes_per_token=size(figures.nbytes_per_token) if figures else NOT_RECORDED,
        basis=figures.basis.replace("_", "-") if figures else "",
        kl=_kl_interval(kl) if kl else None,
        tasks=tuple(TaskCell(task, _task_interval(verdict, task)) for task in tasks),
    )


def _kl_interval(kl: MeanKl) -> Interval:
    allowed = number(kl.limit) if kl.limit is not None else None
    return Interval(number(kl.estimate), _bound(kl.lower), _bound(kl.upper), allowed)


def _task_interval(verdict: FormatVerdict, task: str) -> Interval | None:
    clause = whole_clause(verdict, f"task.{task}")
    return task_loss(clause) if clause is not None and clause.estimate is not None else None


def _headline(
    content: PackContent,
    candidates: list[FormatVerdict],
    smallest: FormatVerdict | None,
    figures: dict[str, LedgerFigures],
    kl: dict[str, MeanKl],
) -> str:
    if smallest is None:
        outcomes = [verdict.outcome for verdict in candidates]
        counted = [f"{outcomes.count(o)} {m.word}" for o, m in MARKS.items() if o in outcomes and o is not Outcome.MET]
        if Outcome.MET in outcomes:
            return "A candidate met the contract, and no byte ledger is recorded that says what it stores."
        return f"No candidate is shown to meet the contract “{content.contract.name}” ({', '.join(counted) or 'none was judged'})."
    found = figures[smallest.arm]
    parts = [
        f"{smallest.arm} is the smallest candidate that met the contract “{content.contract.name}”: "
        f"{significant(found.stored_bits, 4)} stored bits per value, "
        f"{significant(100 * found.share_of_16_bit)}% of a 16-bit cache{_times_smaller(found.share_of_16_bit)}"
    ]
    if (loss := kl.get(smallest.arm)) is not None:
        between = ""
        if loss.lower is not None and loss.upper is not None:
            level = significant(100 * (1 - 2 * content.contract.inference.alpha))
            between = f" ({level}% interval {significant(loss.lower)} to {significant(loss.upper)}"
            between += f", allowed {significant(loss.limit)})" if loss.limit is not None else ")"
        parts.append(f", at a mean KL of {significant(loss.estimate)} nats per token{between}")
    return "".join(parts) + "."


def _times_smaller(share: float) -> str:
    return f" ({significant(1 / share)} times smaller)" if 0 < share < 1 else ""
