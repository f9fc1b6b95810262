"""Rotary embeddings whose frequencies depend on how long the call is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig

_LENGTH_DEPENDENT = ("dynamic", "longrope", "su")


def rope_length_limit(config: PreTrainedConfig) -> int | None:
    """Tokens up to which a model's rotary frequencies are fixed; None if they always are.

    `dynamic` stretches them beyond `max_position_embeddings`, `longrope` switches them beyond
    `original_max_position_embeddings` (transformers, modeling_rope_utils): keys cached before that point keep the old
    ones in a run by steps, and get the new ones in one pass.
    """
    limits: list[int] = []
    for parameters in _rope_parameters(config):
        if parameters.get("rope_type", parameters.get("type")) in _LENGTH_DEPENDENT:
            original = parameters.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limits.append(int(original or config.max_position_embeddings))
    return min(limits, default=None)


def _rope_parameters(config: PreTrainedConfig) -> Iterator[Mapping[str, Any]]:
    """The parameters of every layer type: one mapping, or one a type of attention."""
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if not isinstance(found, Mapping):
            continue
        yield found
        yield from (nested for nested in found.values() if isinstance(nested, Mapping))
