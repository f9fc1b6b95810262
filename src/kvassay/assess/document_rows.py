"""Rows of one document: the reference once, then every arm on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvassay.assess.arms import PlannedArm
from kvassay.cache.cohorts import LayerCalibration
from kvassay.engines.transformers.decode_scorer import CandidatePass, DecodeScorer, ReferencePass
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.measures.teacher_forced import TokenMeasures, compare_distributions, greedy_tokens

Calibrations = Mapping[str, Mapping[int, LayerCalibration]]
"""Static scales by arm name; empty where a format needs none."""


class ArmPass(NamedTuple):
    """One arm's pass over one document."""

    arm: PlannedArm
    candidate: CandidatePass


class DocumentPasses(NamedTuple):
    """Reference and arms on one document. Row i is the query at position `prompt_tokens + i`."""

    token_ids: Tensor
    prompt_tokens: int
    reference: ReferencePass
    reference_hidden: Tensor
    """Of the scored positions; over the contract's reference cache."""
    arms: tuple[ArmPass, ...]


class TokenRows(NamedTuple):
    """Columns of the token table for one arm and document, the measures behind them, and the encode counts."""

    arm: str
    columns: dict[str, Any]
    measures: TokenMeasures
    counts: EncodeCounts


def run_document(
    scorer: DecodeScorer,
    token_ids: Sequence[int],
    prompt_tokens: int,
    arms: Sequence[PlannedArm],
    calibrations: Calibrations,
    reference_kv: str,
) -> DocumentPasses:
    """Run the reference and all arms over one document."""
    ids = torch.tensor(token_ids)
    reference = scorer.reference(ids)
    hidden = scorer.reference_hidden(ids, prompt_tokens, reference, reference_kv)
    passes = tuple(
        ArmPass(arm, scorer.candidate(ids, prompt_tokens, reference, arm.kv_format, calibrations.get(arm.name)))
        for arm in arms
    )
    return DocumentPasses(ids, prompt_tokens, reference, hidden, passes)


def token_rows(scorer: DecodeScorer, passes: DocumentPasses, document: str, cells: Sequence[str]) -> list[TokenRows]:
    """One row a scored position that has a true next token, for every arm; `cells` are the rows' `slice` cells."""
    next_ids = passes.token_ids[passes.prompt_tokens + 1 :]
    count = len(next_ids)
    measures = compare_distributions(
        scorer.output_head,
        passes.reference_hidden[:count],
        {arm.name: run.hidden[:count] for arm, run in passes.arms},
        next_ids,
    )
    rows = []
    for arm, run in passes.arms:
        found = measures[arm.name]
        columns = {
            "arm": [arm.name] * count,
            "slice": list(cells),
            "document": [document] * count,
            "position": list(range(passes.prompt_tokens, passes.prompt_tokens + count)),
            "token_id": next_ids.tolist(),
            **{name: values.tolist() for name, values in found._asdict().items()},
            "stored_reads": run.stored_reads[:count].tolist(),
        }
        rows.append(TokenRows(arm.name, columns, found, run.counts))
    return rows


class Answer(NamedTuple):
    """What one arm would have generated in place of the answer, token by token under teacher forcing."""

    arm: str
    token_ids: list[int]
    stored_reads: int
    """Of the query that predicts the first answer token."""


def answers(scorer: DecodeScorer, passes: DocumentPasses, answer_tokens: int) -> tuple[list[int], list[Answer]]:
    """Most likely tokens at the answer's positions: the reference's, then each arm's."""
    # The token before each answer token predicts it; the last token of the document predicts nothing here.
    predicting = slice(-answer_tokens - 1, -1)
    reference = greedy_tokens(scorer.output_head, passes.reference_hidden[predicting]).tolist()
    found = [
        Answer(
            arm.name,
            greedy_tokens(scorer.output_head, run.hidden[predicting]).tolist(),
            int(run.stored_reads[predicting][0]),
        )
        for arm, run in passes.arms
    ]
    return reference, found
