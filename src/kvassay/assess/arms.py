"""The arms of a run: candidates, canary, and the reference against itself."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.core.records import Role


class PlannedArm(NamedTuple):
    """One format that will be run, under the name that its rows carry."""

    name: str
    role: Role
    kv_format: KVFormat


def planned_arms(contract: Contract) -> tuple[PlannedArm, ...]:
    """Candidates in the contract's order, then the canary, then the A/A runs of the reference format."""
    arms = [PlannedArm(text, Role.CANDIDATE, parse_format(text)) for text in contract.candidates.order]
    if contract.controls.canary is not None:
        canary = contract.controls.canary
        arms.append(PlannedArm(canary, Role.CANARY, parse_format(canary)))
    reference = contract.subject.reference_kv
    for run in range(1, contract.controls.aa_runs + 1):
        arms.append(PlannedArm(f"{reference} again {run}", Role.REFERENCE_AGAIN, parse_format(reference)))
    return tuple(arms)
