"""The answer: which candidates meet the contract, what each stores, and what each loses."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import ClauseVerdict, FormatVerdict, Outcome, Role
from kvassay.pack.reader import PackContent
from kvassay.report.clause_tables import NO_BOUND
from kvassay.report.figures import (
    NOT_RECORDED,
    Figure,
    Shown,
    as_given,
    given,
    number,
    percent,
    significant,
    size,
    times_smaller,
)
from kvassay.report.findings import Findings, MeanKl, find, whole_clause
from kvassay.report.ledger_figures import LedgerFigures
from kvassay.report.outcomes import MARKS, Mark, mark


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
    absent: str
    """What stands in place of a quality figure that is not there."""


class Answer(NamedTuple):
    headline: str
    mark: Mark
    overall_reason: str
    exit_code: int
    rows: tuple[AnswerRow, ...]
    tasks: tuple[str, ...]
    cache_size: str
    """Of which cache the bytes are; empty where the ledgers differ in it."""
    interval_level: Shown
    one_sided_level: Shown


def answer(findings: Findings) -> Answer:
    content, kl, figures = findings.content, findings.mean_kl, findings.figures
    smallest = smallest_met(findings)
    candidates = [verdict for verdict in content.verdicts.formats if verdict.role is Role.CANDIDATE]
    tasks = tuple(sorted(content.contract.task))
    # Smallest first, so that the reader meets the answer in the order of the question; unmeasured ones come last.
    ordered = sorted(candidates, key=lambda v: figures[v.arm].stored_bits if v.arm in figures else float("inf"))
    alpha = content.contract.inference.alpha
    return Answer(
        headline=_headline(findings, candidates, smallest),
        mark=mark(content.verdicts.outcome),
        overall_reason=content.verdicts.reason,
        exit_code=content.verdicts.exit_code,
        rows=tuple(_row(v, v is smallest, figures.get(v.arm), kl.get(v.arm), tasks) for v in ordered),
        tasks=tasks,
        cache_size=_cache_size(findings),
        interval_level=Figure(level(1 - 2 * alpha), repr(1 - 2 * alpha)),
        one_sided_level=Figure(level(1 - alpha), repr(1 - alpha)),
    )


def headline(content: PackContent) -> str:
    """The answer in one sentence: the smallest candidate that met the contract, its bytes and its loss."""
    findings = find(content)
    candidates = [verdict for verdict in content.verdicts.formats if verdict.role is Role.CANDIDATE]
    return _headline(findings, candidates, smallest_met(findings))


def smallest_met(findings: Findings) -> FormatVerdict | None:
    """The candidate of fewest stored bits among those that are MET; None where none is or none has a ledger."""
    figures = findings.figures
    met = [
        verdict
        for verdict in findings.content.verdicts.formats
        if verdict.role is Role.CANDIDATE and verdict.outcome is Outcome.MET and verdict.arm in figures
    ]
    return min(met, key=lambda verdict: figures[verdict.arm].stored_bits, default=None)


def task_loss(clause: ClauseVerdict) -> Interval:
    """A task clause as a loss of accuracy, in points.

    A clause of a change (candidate − reference) has a negative limit; its sign is turned, and its bounds change places.
    """
    if clause.limit < 0:
        estimate, lower, upper = (_negated(clause.estimate), _negated(clause.upper), _negated(clause.lower))
    else:
        estimate, lower, upper = clause.estimate, clause.lower, clause.upper
    return Interval(_points(estimate), _points(lower), _points(upper), _limit_points(abs(clause.limit)))


def _cache_size(findings: Findings) -> str:
    sizes = {(figures.tokens, figures.batch) for figures in findings.figures.values()}
    if len(sizes) != 1:
        return ""
    ((tokens, batch),) = sizes
    return f"{tokens:,} tokens" + (f" in each of {batch:,} rows" if batch > 1 else "")


def _points(share: float | None) -> Shown:
    """A difference of two shares in percentage points; the exact value is the share."""
    return NO_BOUND if share is None else Figure(significant(100 * share), repr(share))


def _limit_points(share: float) -> Shown:
    return Figure(as_given(round(100 * share, 10)), repr(share))


def _bound(value: float | None) -> Shown:
    return NO_BOUND if value is None else number(value)


def _negated(value: float | None) -> float | None:
    return None if value is None else 0.0 - value


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
        absent="not measured" if verdict.outcome is Outcome.NOT_MEASURED else "no usable figure",
    )


def _kl_interval(kl: MeanKl) -> Interval:
    allowed = given(kl.limit) if kl.limit is not None else None
    return Interval(number(kl.estimate), _bound(kl.lower), _bound(kl.upper), allowed)


def _task_interval(verdict: FormatVerdict, task: str) -> Interval | None:
    clause = whole_clause(verdict, f"task.{task}")
    return task_loss(clause) if clause is not None and clause.estimate is not None else None


def _headline(findings: Findings, candidates: list[FormatVerdict], smallest: FormatVerdict | None) -> str:
    content = findings.content
    if smallest is None:
        outcomes = [verdict.outcome for verdict in candidates]
        counted = [f"{outcomes.count(o)} {m.word}" for o, m in MARKS.items() if o in outcomes and o is not Outcome.MET]
        if Outcome.MET in outcomes:
            return "A candidate met the contract, and no byte ledger is recorded that says what it stores."
        tally = ", ".join(counted) or "none was judged"
        return f"No candidate is shown to meet the contract “{content.contract.name}” ({tally})."
    found = findings.figures[smallest.arm]
    parts = [
        f"{smallest.arm} is the smallest candidate that met the contract “{content.contract.name}”: "
        f"{significant(found.stored_bits, 4)} stored bits per value at {found.tokens:,} tokens, "
        f"{significant(100 * found.share_of_16_bit)}% of a 16-bit cache ({times_smaller(found.share_of_16_bit)})"
    ]
    if (loss := findings.mean_kl.get(smallest.arm)) is not None:
        between = ""
        if loss.lower is not None and loss.upper is not None:
            interval_level = level(1 - 2 * content.contract.inference.alpha)
            between = f" ({interval_level} interval {significant(loss.lower)} to {significant(loss.upper)}"
            between += f", allowed {as_given(loss.limit)})" if loss.limit is not None else ")"
        parts.append(f", at a mean KL of {significant(loss.estimate)} nats per token{between}")
    return "".join(parts) + "." + _in_plain_words(findings, smallest)


def _in_plain_words(findings: Findings, chosen: FormatVerdict) -> str:
    """What the loss looks like: most likely tokens that stay, and items still right."""
    sentences: list[str] = []
    agreement = next((summary.top1_agreement for summary in findings.kl if summary.arm == chosen.arm), None)
    if agreement is not None:
        sentences.append(f" Its most likely next token is the reference's at {100 * agreement:.1f}% of positions.")
    for task in sorted(findings.content.contract.task):
        clause = whole_clause(chosen, f"task.{task}")
        if clause is None or clause.estimate is None:
            continue
        if len(right := _counts(clause, "accuracy")) != 2:
            continue
        how = " (written)" if findings.content.contract.task[task].is_written else ""
        sentence = f" Task {task}{how}: {right[1]} of {clause.n} contexts right, the reference {right[0]}"
        if len(parsed := _counts(clause, "parse_rate")) == 2:
            sentence += f"; {parsed[1]} parse, the reference's {parsed[0]}"
        sentences.append(f"{sentence}.")
    return "".join(sentences)


def _counts(clause: ClauseVerdict, share: str) -> list[int]:
    """Of the reference's and the candidate's items; fewer where the details lack a share."""
    found = [clause.details.get(f"{arm}_{share}") for arm in ("reference", "candidate")]
    return [round(one * clause.n) for one in found if isinstance(one, float)]


def level(share: float) -> str:
    """A confidence level as percent, such as `95%`."""
    return f"{as_given(round(100 * share, 10))}%"
