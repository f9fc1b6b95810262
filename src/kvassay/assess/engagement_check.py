"""Refuse before the run what its own controls would find invalid after it: a text too short to leave the window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvassay.assess.arms import PlannedArm
from kvassay.core.contract import Contract
from kvassay.errors import ContractError
from kvassay.judge.engagement import LEAST_READING_SHARE, expected_reads


def check_engagement(contract: Contract, arms: Sequence[PlannedArm]) -> None:
    """Raise ContractError for a format that keeps nearly all scored history at full precision, so codes never count."""
    if not (contract.has_fidelity and contract.controls.require_engaged):
        return
    text = contract.text
    positions = np.arange(text.prompt_tokens, text.prompt_tokens + text.scored_tokens - 1)
    for arm in arms:
        if arm.kv_format.is_exact:
            continue
        share = float(np.mean(expected_reads(arm.kv_format, positions) > 0))
        if share < LEAST_READING_SHARE:
            kept = arm.kv_format.sinks + arm.kv_format.recent
            raise ContractError(
                f"{arm.name} keeps {kept} tokens and more at full precision: of the {len(positions)} scored positions "
                f"of a text of {text.prompt_tokens} + {text.scored_tokens} tokens, {share:.0%} would read any code; "
                "write a smaller window (recent=32) or raise text.prompt_tokens"
            )
