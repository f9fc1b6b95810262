"""Rows of the numeric level: errors of one captured document, by arm, layer, KV head and substituted side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations
from kvassay.core.format_names import parse_format
from kvassay.engines.transformers.decode_scorer import DecodeScorer, LayerAttention
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.measures.attention_error import CellErrors, Errors, MeasuredFormat, attention_errors


class TensorRows(NamedTuple):
    columns: dict[str, list[Any]]
    """Of the tensor table."""
    counts: dict[str, EncodeCounts]
    """By arm."""


def tensor_rows(
    scorer: DecodeScorer,
    token_ids: Sequence[int],
    prompt_tokens: int,
    queries: int,
    document: str,
    arms: Sequence[PlannedArm],
    calibrations: Calibrations,
) -> TensorRows:
    """Run a document once over the full-precision cache and measure its last `queries` decode positions."""
    cells: dict[str, list[CellErrors]] = {arm.name: [] for arm in arms}
    encoded: dict[str, list[int]] = {arm.name: [0, 0] for arm in arms}
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
        errors = attention_errors(observed, formats, scorer.geometry, queries)
        for arm, found in zip(arms, errors, strict=True):
            cells[arm.name] += found.cells
            encoded[arm.name][0] += found.counts.encoded_values
            encoded[arm.name][1] += found.counts.clipped_values

    ids = torch.tensor(token_ids)
    scorer.candidate(ids, prompt_tokens, scorer.reference(ids), parse_format("f32"), observer=measure)
    rows = [(name, cell) for name, found in sorted(cells.items()) for cell in found]
    columns: dict[str, list[Any]] = {
        "arm": [name for name, _ in rows],
        "document": [document] * len(rows),
        **{name: [getattr(cell, name) for _, cell in rows] for name in ("layer", "head", "substituted")},
    }
    for part in ("reconstruction", "score", "weight", "output"):
        for figure in Errors._fields:
            columns[f"{part}_{figure}"] = [getattr(getattr(cell, part), figure) for _, cell in rows]
    columns["stored_reads"] = [cell.stored_reads for _, cell in rows]
    return TensorRows(columns, {name: EncodeCounts(*counts) for name, counts in encoded.items()})
