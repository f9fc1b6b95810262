"""The plan, before the run: what n the contract asks for, what n is needed, with what chance, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Level
from kvassay.assess.pilot import Pilot
from kvassay.core.contract import Contract

NO_PILOT: dict[str, Any] = {"documents": 0, "document_ids": [], "items": 0, "answers": 0, "prompts": 0}
"""Units of a pilot that had none; a level that has some names its own."""


def plan_record(
    contract: Contract, arms: Sequence[PlannedArm], pilot: Pilot, levels: Sequence[Level]
) -> dict[str, Any]:
    """The plan as JSON: one entry an arm and clause, the pilot behind it, and the expected cost."""
    entries = [entry for level in levels for entry in level.plan(arms, pilot.rows[level.name])]
    order = {arm.name: index for index, arm in enumerate(arms)}
    costs = [level.cost(arms) for level in levels]
    return {
        "contract_sha256": contract.sha256,
        "power_asked": contract.inference.power,
        "pilot": {
            **NO_PILOT,
            **{key: value for level in levels for key, value in level.pilot_json().items()},
        },
        "clauses": sorted(entries, key=lambda entry: order[entry["arm"]]),
        "cost": {
            "reference_tokens": sum(cost.reference_tokens for cost in costs),
            "candidate_tokens": sum(cost.candidate_tokens for cost in costs),
            "seconds_expected": sum(pilot.seconds_per_unit[level.name] * len(level.units) for level in levels),
            "seconds_by_level": {level.name: pilot.seconds_per_unit[level.name] * len(level.units) for level in levels},
        },
    }
