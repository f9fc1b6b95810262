"""All clauses of one arm, judged on its own rows, with the Holm correction among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from kvassay.core.contract import Contract
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, ControlResult, Outcome
from kvassay.core.slices import ALL
from kvassay.errors import FormatError
from kvassay.judge.answer_engagement import with_answers
from kvassay.judge.answer_rows import AnswerTable, answer_labels
from kvassay.judge.byte_bounds import byte_clauses
from kvassay.judge.engagement import ArmRows, Engagement, ItemSlices, engagement
from kvassay.judge.fidelity import fidelity_clauses
from kvassay.judge.free_running import free_running_clauses
from kvassay.judge.generation_engagement import with_generations
from kvassay.judge.generation_rows import GenerationTable
from kvassay.judge.judged import JudgedClause
from kvassay.judge.numeric import numeric_clauses, tensor_slices
from kvassay.judge.pairing import Faults
from kvassay.judge.rows import ItemTable, TensorTable, TokenTable, labels_of, rows_in_slice
from kvassay.judge.task import task_clauses
from kvassay.judge.token_slices import TokenCounts, token_slices
from kvassay.judge.wording import figure
from kvassay.judge.written_tasks import written_clauses
from kvassay.stats.multiplicity import holm


class Evidence(NamedTuple):
    """The rows of a run, and what is wrong with them."""

    tokens: TokenTable
    items: ItemTable
    generations: GenerationTable
    token_faults: Faults
    item_faults: Mapping[str, Faults]
    """By task."""
    token_counts: TokenCounts
    """Of the tokens that the run scores, whatever the arm."""
    generation_faults: Faults
    tensors: TensorTable
    tensor_faults: Faults
    answers: AnswerTable
    answer_faults: Mapping[str, Faults]
    """By task whose answers are written."""


class JudgedArm(NamedTuple):
    arm: Arm
    clauses: tuple[JudgedClause, ...]
    controls: tuple[ControlResult, ...]


def judge_arm(contract: Contract, arm: Arm, ledger: ByteLedger | None, evidence: Evidence) -> JudgedArm:
    """Every clause of the contract for one arm; run-wide controls are not applied yet."""
    tokens = evidence.tokens.arms.get(arm.name)
    given, written = contract.teacher_forced_tasks, contract.written_tasks
    items = {task: rows for task in given if (rows := evidence.items.arms.get((task, arm.name))) is not None}
    answers = {task: rows for task in written if (rows := evidence.answers.get(task, {}).get(arm.name)) is not None}
    generations = evidence.generations.get(arm.name)
    tensors = evidence.tensors.arms.get(arm.name) if contract.numeric.bounds else None
    token_parts = None
    if tokens is not None:
        token_parts = token_slices(evidence.tokens, tokens, contract.text, evidence.token_counts)
    fault, found = _identity_fault(arm, ledger), Engagement((), {}, {})
    if isinstance(fault, KVFormat):
        cells = evidence.items.slices
        item_parts = {
            task: ItemSlices(rows, {label: rows_in_slice(cells, rows.slice, label) for label in labels_of(cells)})
            for task, rows in items.items()
        }
        tensor_parts = None if tensors is None else tensor_slices(evidence.tensors, tensors)
        rows = ArmRows(tokens, token_parts, item_parts, tensor_parts)
        found = with_generations(engagement(contract, arm, fault, ledger, rows), arm, fault, generations)
        labelled = {task: (of_arm, answer_labels(evidence.answers, task)) for task, of_arm in answers.items()}
        found = with_answers(found, arm, fault, labelled)
    whole = (fault,) if isinstance(fault, str) else ()
    required = contract.controls.require_engaged

    def faults(level: str, of_rows: tuple[str, ...] = ()) -> tuple[str, ...]:
        not_engaged = f"not engaged: {found.faults[level]}" if required and level in found.faults else None
        return (*whole, *((not_engaged,) if not_engaged else ()), *of_rows)

    of_rows = evidence.token_faults.get(arm.name, ())
    clauses = [*fidelity_clauses(contract, token_parts, faults("fidelity", of_rows))]
    of_generations = evidence.generation_faults.get(arm.name, ())
    clauses += free_running_clauses(contract, evidence.generations, generations, faults("free_running", of_generations))
    of_tensors = evidence.tensor_faults.get(arm.name, ())
    clauses += numeric_clauses(contract, evidence.tensors, tensors, faults("numeric", of_tensors))
    for task, bound in given.items():
        of_rows = evidence.item_faults[task].get(arm.name, ())
        clauses += task_clauses(contract, task, bound, evidence.items, items.get(task), faults(f"task.{task}", of_rows))
    for task, bound in written.items():
        of_task = faults(f"task.{task}", evidence.answer_faults[task].get(arm.name, ()))
        clauses += written_clauses(contract, task, bound, evidence.answers, answers.get(task), of_task)
    clauses += byte_clauses(contract, ledger, faults("bytes"))
    if required:
        clauses = [_if_engaged(clause, found) for clause in clauses]
    waived = {waiver.clause: waiver for waiver in contract.waivers}
    for index, clause in enumerate(clauses):
        waiver = waived.get(clause.verdict.clause)
        clauses[index] = clause.with_details(waived=waiver is not None)
        if waiver is not None:
            reason = f"{clause.verdict.reason}; waived since {waiver.granted.isoformat()}, so it does not decide"
            clauses[index] = clauses[index].becomes(clause.outcome, reason)._replace(decisive=False)
    controls = (*found.controls, *_slice_controls(clauses, found))
    return JudgedArm(arm, _hold_breaches(clauses, contract.inference.alpha), controls)


def _if_engaged(clause: JudgedClause, found: Engagement) -> JudgedClause:
    """A slice whose queries did not read the store has no figures, whatever the rest of its level did."""
    fault = found.slice_faults.get((clause.level, clause.verdict.slice))
    if fault is None or clause.outcome in (Outcome.NOT_MEASURED, Outcome.INVALID_EVIDENCE):
        return clause
    reason = f"not engaged in slice {clause.verdict.slice!r}: {fault}"
    return clause.becomes(Outcome.INVALID_EVIDENCE, reason)._replace(p_met=None, p_breached=None)


def _slice_controls(clauses: Sequence[JudgedClause], found: Engagement) -> Iterator[ControlResult]:
    """Of the slices that decide, where engagement applies at all."""
    if all(control.passed is None for control in found.controls):
        return
    keys = dict.fromkeys(
        (clause.level, clause.verdict.slice) for clause in clauses if clause.decisive and clause.verdict.slice != ALL
    )
    ran = {(c.level, c.verdict.slice) for c in clauses if c.outcome is not Outcome.NOT_MEASURED}
    for level, label in keys:
        name, fault = f"engaged.{level}.{label}", found.faults.get(level) or found.slice_faults.get((level, label))
        if (level, label) not in ran:
            yield ControlResult(name=name, passed=None, reason="not run: the arm has no rows in this slice")
        elif (level, label) in found.exact_slices:
            yield ControlResult(name=name, passed=None, reason="does not apply: the format stores plain floats there")
        else:
            well = "its queries read stored tokens"
            yield ControlResult(name=name, passed=fault is None, reason=fault or well)


def _identity_fault(arm: Arm, ledger: ByteLedger | None) -> KVFormat | str:
    """The arm's format, or why its identity cannot be trusted."""
    try:
        kv_format = KVFormat.model_validate(arm.format)
    except (ValidationError, FormatError) as error:
        return f"the format of the arm cannot be read: {str(error).splitlines()[0]}"
    if kv_format.digest != arm.format_digest:
        return f"the digest of the arm is {arm.format_digest[:12]}, its format has {kv_format.digest[:12]}"
    if ledger is not None and ledger.format_digest != arm.format_digest:
        return f"the ledger is of format {ledger.format_name}, the arm of {kv_format.name}"
    return kv_format


def _hold_breaches(clauses: list[JudgedClause], alpha: float) -> tuple[JudgedClause, ...]:
    """Holm among the decisive sampled clauses: a breach that does not survive it is inconclusive.

    MET needs no correction, since all clauses must be met at once (intersection-union).
    """
    family = [index for index, clause in enumerate(clauses) if clause.decisive and clause.sampled]
    p_values = [_p_breached(clauses[index]) for index in family]
    held = list(clauses)
    for index, adjusted in zip(family, holm(p_values), strict=True):
        clause = clauses[index]
        if clause.outcome is not Outcome.BREACHED:
            continue
        held[index] = clause.with_details(p_breached_holm=adjusted)
        if adjusted > alpha:
            reason = (
                f"{clause.verdict.reason}, but not after Holm over {len(family)} clauses "
                f"(adjusted p = {figure(adjusted)})"
            )
            held[index] = held[index].becomes(Outcome.INCONCLUSIVE, reason)
    return tuple(held)


def _p_breached(clause: JudgedClause) -> float:
    """p value of a breach; 1 where the clause is not breached on its own or could not be tested."""
    return clause.p_breached if clause.outcome is Outcome.BREACHED and clause.p_breached is not None else 1.0
