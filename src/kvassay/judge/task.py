"""Task clauses: paired non-inferiority of accuracy. The unit is the context, with one item each.

The fixed design is judged by Tango's score with its exact floor, the sequential one by an e-process. McNemar's test and
the permutation test of the difference are descriptive: they ask whether anything changed, not whether too much did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.core.slices import ALL
from kvassay.judge.judged import JudgedClause
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
    yield _judge(contract, task, bound, ALL, contexts, rows, faults)
    for name in (*bound.slices, *(name for name in labels_of(table.slices) if name not in bound.slices)):
        part = None if rows is None else rows.take(rows_in_slice(table.slices, rows.slice, name))
        if part is not None and not part.size:
            part = None
        # A slice that holds every row would be said twice.
        if name in bound.slices or (part is not None and rows is not None and part.size < rows.size):
            yield _judge(contract, task, bound, name, contexts, part, faults)


def reference_accuracy(rows: ItemRows) -> float:
    return float(np.count_nonzero(rows.reference_correct == 1)) / rows.size


def _judge(
    contract: Contract,
    task: str,
    bound: TaskBound,
    slice_name: str,
    contexts: Sequence[str],
    rows: ItemRows | None,
    faults: tuple[str, ...],
) -> JudgedClause:
    if rows is None:
        reason = "no items of this arm" if slice_name == ALL else f"no items of this arm in slice {slice_name!r}"
        return _clause(task, bound, slice_name, Outcome.NOT_MEASURED, reason, None, 0)
    unknown = int(np.count_nonzero(np.isnan(rows.reference_correct) | np.isnan(rows.candidate_correct)))
    missing = [f"correctness is missing in {unknown} of {rows.size} items"] if unknown else []
    if fault := first_fault([*faults, *missing]):
        return _clause(task, bound, slice_name, Outcome.INVALID_EVIDENCE, fault, None, rows.size)
    losses = int(np.count_nonzero((rows.reference_correct == 1) & (rows.candidate_correct == 0)))
    gains = int(np.count_nonzero((rows.reference_correct == 0) & (rows.candidate_correct == 1)))
    accuracy = reference_accuracy(rows)
    details: dict[str, float | int | str | bool | None] = {
        "kind": bound.kind,
        "measure": MEASURE,
        "losses": losses,
        "gains": gains,
        "reference_accuracy": accuracy,
        "candidate_accuracy": float(np.count_nonzero(rows.candidate_correct == 1)) / rows.size,
        "descriptive_mcnemar_p": mcnemar_mid_p(losses, gains),
    }
    if contract.inference.design == "sequential":
        return _judge_sequential(contract, task, bound, slice_name, in_run_order(contexts, rows)).with_details(
            **details
        )
    result = paired_noninferiority(rows.size, losses, gains, bound.margin, contract.inference.alpha)
    outcome, reason = _decide(contract, task, bound, slice_name, result, accuracy)
    clause = _clause(task, bound, slice_name, outcome, reason, result, rows.size)
    return clause.with_details(
        **details,
        z=finite(result.z),
        tango_lower=result.tango_lower,
        tango_upper=result.tango_upper,
        p_met=result.p_met,
        p_breached=result.p_breached,
        exact_p_met=result.exact_p_met,
        exact_p_breached=result.exact_p_breached,
    )


def _judge_sequential(contract: Contract, task: str, bound: TaskBound, slice_name: str, rows: ItemRows) -> JudgedClause:
    """`rows` are in the order of the run."""
    result = sequential_pairs(differences_of(rows), bound.margin, contract.inference.alpha)
    accuracy = reference_accuracy(rows)
    if accuracy < bound.ref_floor:
        outcome, reason = _below_floor(bound, accuracy, f"({result.losses} lost and {result.gains} gained)")
    else:
        outcome, reason = decide(task, result, bound.items)
    return _clause(task, bound, slice_name, outcome, reason, result, rows.size, METHOD).with_details(
        p_met=result.p_met, p_breached=result.p_breached, decided_at=result.decided_at
    )


def _below_floor(bound: TaskBound, accuracy: float, size: str) -> tuple[Outcome, str]:
    return (
        Outcome.INCONCLUSIVE,
        f"the reference reaches {figure(accuracy)} of the items, below its floor {figure(bound.ref_floor)}: "
        f"the task cannot show a loss {size}",
    )


def _decide(
    contract: Contract, task: str, bound: TaskBound, slice_name: str, result: PairedBinary, accuracy: float
) -> tuple[Outcome, str]:
    size = f"({result.losses} lost and {result.gains} gained of {result.n} contexts)"
    found = f"{task} accuracy ({MEASURE}) changed by {100 * result.delta:+.2f} points"
    if accuracy < bound.ref_floor:
        return _below_floor(bound, accuracy, size)
    planned = bound.items if slice_name == ALL else bound.planned(slice_name, contract.inference.pilot_items)
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
    task: str,
    bound: TaskBound,
    slice_name: str,
    outcome: Outcome,
    reason: str,
    result: PairedBinary | SequentialPairs | None,
    contexts: int,
    method: str = "tango-score, exact floor",
) -> JudgedClause:
    descriptive = slice_name != ALL and slice_name not in bound.slices
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"task.{task}",
            slice=slice_name,
            outcome=outcome,
            reason=reason,
            unit="share of items",
            estimate=result.delta if result else None,
            lower=result.lower if result else None,
            upper=result.upper if result else None,
            limit=-bound.margin,
            n=contexts,
            n_unit="contexts",
            method=method if result else "none",
            details={"descriptive": descriptive},
        ),
        level=f"task.{task}",
        decisive=not descriptive,
        p_met=result.p_met if result else None,
        p_breached=result.p_breached if result else None,
        sampled=True,
    )
