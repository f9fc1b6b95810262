"""The levels that a contract asks for."""

from __future__ import annotations

from typing import Any

from kvassay.assess.levels.answers import AnswerLevel
from kvassay.assess.levels.base import Level
from kvassay.assess.levels.documents import DocumentLevel
from kvassay.assess.levels.items import ItemLevel
from kvassay.assess.levels.prompts import PromptLevel
from kvassay.assess.levels.tensors import TensorLevel
from kvassay.core.contract import Contract


def drawn_levels(contract: Contract, tokenizer: Any) -> tuple[Level, ...]:
    """In the order in which they run; raises WorkloadError where there is too little text."""
    levels: list[Level] = []
    scored = DocumentLevel(contract, tokenizer) if contract.has_fidelity else None
    if scored is not None:
        levels.append(scored)
    if contract.needs_text and contract.numeric.documents:
        levels.append(TensorLevel(contract, tokenizer, scored))
    if contract.teacher_forced_tasks:
        levels.append(ItemLevel(contract, tokenizer))
    if contract.written_tasks:
        levels.append(AnswerLevel(contract, tokenizer))
    if contract.has_free_running:
        # The documents of a level's pilot calibrate static scales and so are never judged.
        taken = {unit.id for level in levels if level.is_text for unit in level.pilot_units}
        levels.append(PromptLevel(contract, tokenizer, taken))
    return tuple(levels)
