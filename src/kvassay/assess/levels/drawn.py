"""The levels that a contract asks for."""

from __future__ import annotations

from typing import Any

from kvassay.assess.levels.base import Level
from kvassay.assess.levels.documents import DocumentLevel
from kvassay.assess.levels.items import ItemLevel
from kvassay.core.contract import Contract


def drawn_levels(contract: Contract, tokenizer: Any) -> tuple[Level, ...]:
    """In the order in which they run; raises WorkloadError where there is too little text."""
    levels: list[Level] = []
    if contract.has_fidelity:
        levels.append(DocumentLevel(contract, tokenizer))
    if contract.task:
        levels.append(ItemLevel(contract, tokenizer))
    return tuple(levels)
