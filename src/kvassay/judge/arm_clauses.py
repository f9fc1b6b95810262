"""All clauses of one arm, judged on its own rows, with the Holm correction among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ValidationError

from kvassay.core.contract import Contract
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import ByteLedger
from kvassay.core.records import Arm, ControlResult, Outcome
from kvassay.errors import FormatError
from kvassay.judge.byte_bounds import byte_clauses
from kvassay.judge.engagement import Engagement, engagement
from kvassay.judge.fidelity import fidelity_clauses
from kvassay.judge.judged import JudgedClause
from kvassay.judge.numeric import numeric_clauses
from kvassay.judge.pairing import Faults
from kvassay.judge.rows import ItemTable, TensorTable, TokenTable
from kvassay.judge.task import task_clauses
from kvassay.judge.wording import figure
from kvassay.stats.multiplicity import holm


class Evidence(NamedTuple):
    """The rows of a run, and what is wrong with them."""

    tokens: TokenTable
    items: ItemTable
    token_faults: Faults
    item_faults: Mapping[str, Faults]
    """By task."""
    tensors: TensorTable
    tensor_faults: Faults


class JudgedArm(NamedTuple):
    arm: Arm
    clauses: tuple[JudgedClause, ...]
    controls: tuple[ControlResult, ...]


def judge_arm(contract: Contract, arm: Arm, ledger: ByteLedger | None, evidence: Evidence) -> JudgedArm:
    """Every clause of the contract for one arm; run-wide controls are not applied yet."""
    tokens = evidence.tokens.arms.get(arm.name)
    items = {task: rows for task in contract.task if (rows := evidence.items.arms.get((task, arm.name))) is not None}
    tensors = evidence.tensors.arms.get(arm.name) if contract.numeric.bounds else None
    fault, found = _identity_fault(arm, ledger), Engagement((), {})
    if isinstance(fault, KVFormat):
        found = engagement(contract, arm, fault, ledger, tokens, items, tensors)
    whole = (fault,) if isinstance(fault, str) else ()
    required = contract.controls.require_engaged

    def faults(level: str, of_rows: tuple[str, ...] = ()) -> tuple[str, ...]:
        not_engaged = f"not engaged: {found.faults[level]}" if required and level in found.faults else None
        return (*whole, *((not_engaged,) if not_engaged else ()), *of_rows)

    clauses = [
        *fidelity_clauses(
            contract, evidence.tokens, tokens, faults("fidelity", evidence.token_faults.get(arm.name, ()))
        )
    ]
    of_tensors = faults("numeric", evidence.tensor_faults.get(arm.name, ()))
    clauses += numeric_clauses(contract, evidence.tensors, tensors, of_tensors)
    for task, bound in sorted(contract.task.items()):
        of_rows = evidence.item_faults[task].get(arm.name, ())
        clauses += task_clauses(contract, task, bound, evidence.items, items.get(task), faults(f"task.{task}", of_rows))
    clauses += byte_clauses(contract, ledger, faults("bytes"))
    waived = {waiver.clause: waiver for waiver in contract.waivers}
    for index, clause in enumerate(clauses):
        waiver = waived.get(clause.verdict.clause)
        clauses[index] = clause.with_details(waived=waiver is not None)
        if waiver is not None:
            reason = f"{clause.verdict.reason}; waived since {waiver.granted.isoformat()}, so it does not decide"
            clauses[index] = clauses[index].becomes(clause.outcome, reason)._replace(decisive=False)
    return JudgedArm(arm, _hold_breaches(clauses, contract.inference.alpha), found.controls)


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
