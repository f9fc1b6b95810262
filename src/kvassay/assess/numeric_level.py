"""Numeric level of a run: errors of captured tensors and attention outputs, on one document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations, DocumentPasses
from kvassay.core.format_names import parse_format
from kvassay.engines.transformers.decode_scorer import DecodeScorer, LayerAttention
from kvassay.measures.attention_error import AttentionError, MeasuredFormat, attention_errors


def tensor_rows(
    scorer: DecodeScorer,
    passes: DocumentPasses,
    document: str,
    arms: Sequence[PlannedArm],
    calibrations: Calibrations,
) -> dict[str, list[Any]]:
    """Columns of the tensor table: every arm and layer, with keys, values or both replaced."""
    rows: list[tuple[str, AttentionError]] = []
    transforms = {arm.name: scorer.key_transforms(arm.kv_format) for arm in arms}

    def measure(observed: LayerAttention) -> None:
        formats = [
            MeasuredFormat(
                arm.kv_format,
                calibrations.get(arm.name, {}).get(observed.layer),
                transforms[arm.name].get(observed.layer),
            )
            for arm in arms
        ]
        errors = attention_errors(observed, formats, scorer.geometry)
        rows.extend((arm.name, row) for arm, arm_rows in zip(arms, errors, strict=True) for row in arm_rows)

    scorer.candidate(
        torch.as_tensor(passes.token_ids), passes.prompt_tokens, passes.reference, parse_format("f32"), observer=measure
    )
    rows.sort(key=lambda named: named[0])
    columns: dict[str, list[Any]] = {
        "arm": [name for name, _ in rows],
        "document": [document] * len(rows),
    }
    for field in AttentionError._fields:
        columns[field] = [getattr(row, field) for _, row in rows]
    return columns
