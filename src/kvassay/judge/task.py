"""Task clauses: paired non-inferiority of accuracy. The unit is the context, with one item each.

The fixed design is judged by Tango's score with its exact floor, the sequential one by an e-process. McNemar's test and
the permutation test of the difference are descriptive: they ask whether anything changed, not whether too much did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.core.slices import ALL
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rate_clauses import Pairs
from kvassay.judge.rows import ItemRows, ItemTable, labels_of, rows_in_slice
from kvassay.judge.sequential import differences_of, in_run_order
from kvassay.judge.sequential_clause import METHOD, decide
from kvassay.judge.wording import figure, finite, first_fault, level_percent
from kvassay.stats.binary import PairedBinary, paired_noninferiority
from kvassay.stats.eprocess import SequentialPairs, sequential_pairs
from kvassay.stats.mcnemar import mcnemar_mid_p

MEASURE = "teacher-forced"
"""An answer is right if each of its tokens is the most likely one after the true ones before it. For a long answer this
is more lenient than an answer that the model writes by itself, and it cannot tell whether that could be parsed."""


def task_clauses(
    contract: Contract, task: str, bound: TaskBound, table: ItemTable, rows: ItemRows | None, faults: tuple[str, ...]
) -> Iterator[JudgedClause]:
    """Over all items, then for each slice: those that the contract names decide, others are descriptive."""
    contexts = table.contexts
    yield _judge(contract, PairedClause(task, bound, bound.margin, ALL, MEASURE), contexts, rows, faults)
    for name in (*bound.slices, *(name for name in labels_of(table.slices) if name not in bound.slices)):
        part = None if rows is None else rows.take(rows_in_slice(table.slices, rows.slice, name))
        if part is not None and not part.size:
            part = None
        # A slice that holds every row would be said twice.
        if name in bound.slices or (part is not None and rows is not None and part.size < rows.size):
            clause = PairedClause(task, bound, bound.margin, name, MEASURE)
            yield _judge(contract, clause, contexts, part, faults)


def reference_accuracy(rows: ItemRows) -> float:
    return float(np.count_nonzero(rows.reference_correct == 1)) / rows.size


class PairedClause(NamedTuple):
    """One clause on a share of a task's items, in one slice; the reference's share may fall by at most `margin`."""

    task: str
    bound: TaskBound
    margin: float
    slice: str
    measure: str
    """How answers came about, as reason and details say."""
    part: str = ""
    """The clause's name behind the task's own, if it is not the task's main clause."""
    figure: str = "accuracy"

    @property
    def name(self) -> str:
        return f"task.{self.task}" + (f".{self.part}" if self.part else "")

    @property
    def decisive(self) -> bool:
        return self.slice == ALL or self.slice in self.bound.slices


def no_items(clause: PairedClause) -> JudgedClause:
    where = "" if clause.slice == ALL else f" in slice {clause.slice!r}"
    return _clause(clause, Outcome.NOT_MEASURED, f"no items of this arm{where}", None, 0)


def unusable_items(clause: PairedClause, faults: Sequence[str], n: int) -> JudgedClause:
    return _clause(clause, Outcome.INVALID_EVIDENCE, first_fault(faults), None, n)


def judge_paired(contract: Contract, clause: PairedClause, pairs: Pairs) -> JudgedClause:
    """By the fixed design."""
    result = paired_noninferiority(
        len(pairs.reference), pairs.losses, pairs.gains, clause.margin, contract.inference.alpha
    )
    outcome, reason = _decide(contract, clause, result, sum(pairs.reference) / result.n)
    return _clause(clause, outcome, reason, result, result.n).with_details(
        **_counts(clause, result.losses, result.gains),
        z=finite(result.z),
        tango_lower=result.tango_lower,
        tango_upper=result.tango_upper,
        p_met=result.p_met,
        p_breached=result.p_breached,
        exact_p_met=result.exact_p_met,
        exact_p_breached=result.exact_p_breached,
    )


def _judge(
    contract: Contract,
    clause: PairedClause,
    contexts: Sequence[str],
    rows: ItemRows | None,
    faults: tuple[str, ...],
) -> JudgedClause:
    if rows is None:
        return no_items(clause)
    unknown = int(np.count_nonzero(np.isnan(rows.reference_correct) | np.isnan(rows.candidate_correct)))
    missing = [f"correctness is missing in {unknown} of {rows.size} items"] if unknown else []
    if found := [*faults, *missing]:
        return unusable_items(clause, found, rows.size)
    accuracies: dict[str, float | int | str | bool | None] = {
        "reference_accuracy": reference_accuracy(rows),
        "candidate_accuracy": float(np.count_nonzero(rows.candidate_correct == 1)) / rows.size,
    }
    if contract.inference.design == "sequential":
        return _judge_sequential(contract, clause, in_run_order(contexts, rows)).with_details(**accuracies)
    pairs = Pairs((rows.reference_correct == 1).tolist(), (rows.candidate_correct == 1).tolist())
    return judge_paired(contract, clause, pairs).with_details(**accuracies)


def _judge_sequential(contract: Contract, clause: PairedClause, rows: ItemRows) -> JudgedClause:
    """`rows` are in the order of the run."""
    result = sequential_pairs(differences_of(rows), clause.margin, contract.inference.alpha)
    accuracy = reference_accuracy(rows)
    if unfit := _shows_no_loss(clause, accuracy, f"({result.losses} lost and {result.gains} gained)"):
        outcome, reason = unfit
    else:
        outcome, reason = decide(clause.task, result, clause.bound.items)
    return _clause(clause, outcome, reason, result, rows.size, METHOD).with_details(
        **_counts(clause, result.losses, result.gains),
        p_met=result.p_met,
        p_breached=result.p_breached,
        decided_at=result.decided_at,
    )


def _counts(clause: PairedClause, losses: int, gains: int) -> dict[str, float | int | str | None]:
    return {
        "kind": clause.bound.kind,
        "measure": clause.measure,
        "losses": losses,
        "gains": gains,
        "descriptive_mcnemar_p": mcnemar_mid_p(losses, gains),
    }


def _shows_no_loss(clause: PairedClause, share: float, size: str) -> tuple[Outcome, str] | None:
    """Why the reference's share is too low for the clause to fail, if it is; such a clause is never met.

    The contract's floor is the first reason. The other holds under any floor: of a share no larger than the margin not
    more than the margin can be lost, so even a format that gets nothing right would pass.
    """
    if share < clause.bound.ref_floor:
        low = f"below its floor {figure(clause.bound.ref_floor)}: the task cannot show a loss"
    elif share <= clause.margin:
        low = f"no more than the margin {figure(clause.margin)}: the task cannot show a larger loss"
    else:
        return None
    reached = "reaches" if not clause.part else f"has a {clause.figure} of"
    return Outcome.INCONCLUSIVE, f"the reference {reached} {figure(share)} of the items, {low} {size}"


def _decide(contract: Contract, clause: PairedClause, result: PairedBinary, share: float) -> tuple[Outcome, str]:
    size = f"({result.losses} lost and {result.gains} gained of {result.n} contexts)"
    found = f"{clause.task} {clause.figure} ({clause.measure}) changed by {100 * result.delta:+.2f} points"
    if unfit := _shows_no_loss(clause, share, size):
        return unfit
    planned = clause.bound.items
    if clause.slice != ALL:
        planned = clause.bound.planned(clause.slice, contract.inference.pilot_items)
    if result.n != planned:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, but the fixed design plans {planned} contexts and {result.n} were scored: "
            "another number than planned may have been chosen by its result",
        )
    level, margin = level_percent(contract.inference.alpha), f"{-100 * result.margin:.4g}"
    lower, upper = f"{100 * result.lower:+.2f}", f"{100 * result.upper:+.2f}"
    if result.lower > -result.margin:
        return Outcome.MET, f"{found}, {level} lower bound {lower} > {margin} points {size}"
    if result.upper < -result.margin:
        return Outcome.BREACHED, f"{found}, {level} upper bound {upper} < {margin} points {size}"
    exact = ""
    if result.exact_decides_met or result.exact_decides_breached:
        p_value = result.exact_p_met if result.exact_decides_met else result.exact_p_breached
        exact = f"; Tango's bound alone would decide, the exact test does not allow it (p = {figure(p_value)})"
    return Outcome.INCONCLUSIVE, f"{found}, {level} bounds {lower} and {upper} enclose {margin} points{exact} {size}"


def _clause(
    clause: PairedClause,
    outcome: Outcome,
    reason: str,
    result: PairedBinary | SequentialPairs | None,
    contexts: int,
    method: str = "tango-score, exact floor",
) -> JudgedClause:
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=clause.name,
            slice=clause.slice,
            outcome=outcome,
            reason=reason,
            unit="share of items",
            estimate=result.delta if result else None,
            lower=result.lower if result else None,
            upper=result.upper if result else None,
            limit=-clause.margin,
            n=contexts,
            n_unit="contexts",
            method=method if result else "none",
            details={"descriptive": not clause.decisive},
        ),
        level=f"task.{clause.task}",
        decisive=clause.decisive,
        p_met=result.p_met if result else None,
        p_breached=result.p_breached if result else None,
        sampled=True,
    )
