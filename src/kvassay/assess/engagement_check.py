"""Refuse before the run what its own controls would find invalid after it: a text too short to leave the window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvassay.assess.arms import PlannedArm
from kvassay.core.contract import Contract
from kvassay.errors import ContractError
from kvassay.judge.engagement import LEAST_READING_SHARE, expected_reads


def check_engagement(contract: Contract, arms: Sequence[PlannedArm]) -> None:
    """Raise ContractError for a format that keeps nearly all scored history at full precision, so codes never count."""
    if not contract.controls.require_engaged:
        return
    text, free = contract.text, contract.free_running
    if contract.has_fidelity:
        positions = np.arange(text.prompt_tokens, text.prompt_tokens + text.scored_tokens - 1)
        words = f"scored positions of a text of {text.prompt_tokens} + {text.scored_tokens} tokens"
        _check(arms, positions, words, "text.prompt_tokens")
    if contract.has_free_running:
        positions = np.arange(free.prompt_tokens, free.prompt_tokens + free.generated_tokens - 1)
        words = f"queries of {free.generated_tokens} tokens generated from {free.prompt_tokens}"
        _check(arms, positions, words, "free_running.prompt_tokens")


def _check(arms: Sequence[PlannedArm], positions: NDArray[np.int64], words: str, key: str) -> None:
    for arm in arms:
        if arm.kv_format.is_exact:
            continue
        share = float(np.mean(expected_reads(arm.kv_format, positions) > 0))
        if share < LEAST_READING_SHARE:
            kept = arm.kv_format.sinks + arm.kv_format.recent
            raise ContractError(
                f"{arm.name} keeps {kept} tokens and more at full precision: of the {len(positions)} {words}, "
                f"{share:.0%} would read any code; write a smaller window (recent=32) or raise {key}"
            )
