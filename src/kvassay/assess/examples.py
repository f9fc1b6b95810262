"""The worst decode positions of each arm, as text: what was read, what came next, what each cache would have said."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kvassay.assess.document_rows import DocumentPasses, TokenRows
from kvassay.engines.transformers.decode_scorer import DecodeScorer

CONTEXT_TOKENS = 24
"""Tokens of history that are shown before the position."""


class Prediction(NamedTuple):
    text: str
    probability: float


class WorstExamples:
    """Keeps the positions of largest KL of each arm, at most one a document, so that the list shows many documents."""

    def __init__(self, scorer: DecodeScorer, tokenizer: Any, per_arm: int = 5) -> None:
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._per_arm = per_arm
        self._found: dict[str, list[dict[str, Any]]] = {}

    def offer(self, passes: DocumentPasses, rows: list[TokenRows], document: str) -> None:
        for (arm, run), row in zip(passes.arms, rows, strict=True):
            # A position that is not finite is no example; the judge counts it.
            index = int(torch.nan_to_num(row.measures.kl_nats, nan=-torch.inf).argmax())
            if not torch.isfinite(row.measures.kl_nats[index]):
                continue
            position = passes.prompt_tokens + index
            history = passes.token_ids[max(0, position + 1 - CONTEXT_TOKENS) : position + 1]
            reference = self._predict(passes.reference_hidden[index])
            candidate = self._predict(run.hidden[index])
            example = {
                "arm": arm.name,
                "document": document,
                "position": position,
                "kl_nats": float(row.measures.kl_nats[index]),
                "before": self._tokenizer.decode(history.tolist()),
                "true_next": self._tokenizer.decode([int(passes.token_ids[position + 1])]),
                "reference_next": reference.text,
                "reference_probability": reference.probability,
                "candidate_next": candidate.text,
                "candidate_probability": candidate.probability,
            }
            kept = [*self._found.get(arm.name, []), example]
            self._found[arm.name] = sorted(kept, key=lambda found: -found["kl_nats"])[: self._per_arm]

    def to_json(self) -> list[dict[str, Any]]:
        return [example for examples in self._found.values() for example in examples]

    def _predict(self, hidden: torch.Tensor) -> Prediction:
        probabilities = torch.softmax(self._scorer.output_head(hidden[None])[0], dim=-1)
        token = int(probabilities.argmax())
        return Prediction(self._tokenizer.decode([token]), float(probabilities[token]))
