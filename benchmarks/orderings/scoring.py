"""Mean KL of each document under many formats, and paired intervals between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from kvassay.core.format_names import parse_format
from kvassay.engines.transformers.decode_scorer import DecodeScorer, ReferencePass
from kvassay.engines.transformers.loading import load_model
from kvassay.measures.teacher_forced import compare_distributions
from kvassay.stats.cluster import cluster_bound
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import text_documents

PROMPT_TOKENS, SCORED_TOKENS = 256, 64
CORPUS, SEED = "hansard", 11
REPLICATES = 4000


class Interval(NamedTuple):
    """A mean over documents with one-sided 95% bounds (together a 90% interval), by bootstrap-t over documents."""

    estimate: float
    lower: float
    upper: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval excludes zero, else 0."""
        return 1 if self.lower > 0 else -1 if self.upper < 0 else 0


class Scores:
    """KL by format and document. A format is run once, whoever asks for it."""

    def __init__(self, model_name: str, documents: int) -> None:
        self.loaded = load_model(model_name, announce=print)
        self.scorer = DecodeScorer(self.loaded.model, self.loaded.geometry)
        chosen = text_documents(
            load_corpus(CORPUS),
            self.loaded.tokenizer,
            documents=documents,
            prompt_tokens=PROMPT_TOKENS,
            scored_tokens=SCORED_TOKENS,
            seed=SEED,
        )
        self.token_ids = [torch.tensor(document.token_ids) for document in chosen]
        self.kl: dict[str, np.ndarray] = {}

    def run(self, names: Iterable[str]) -> None:
        """Score every document under every format that was not scored yet: one reference pass a document."""
        formats = {name: parse_format(name) for name in names if name not in self.kl}
        static = [name for name, fmt in formats.items() if any(spec.needs_calibration for spec in fmt.specs)]
        means: dict[str, list[float]] = {name: [] for name in formats}
        for index, token_ids in enumerate(self.token_ids):
            reference = self.scorer.reference(token_ids)
            scales = {name: self.scorer.calibrate(formats[name], [reference]) for name in static}
            found = {
                name: self.scorer.candidate(token_ids, PROMPT_TOKENS, reference, fmt, scales.get(name)).hidden[:-1]
                for name, fmt in formats.items()
            }
            for name, kl_nats in self._mean_kl(token_ids, reference, found).items():
                means[name].append(kl_nats)
            print(f"document {index + 1} of {len(self.token_ids)}, {len(formats)} formats", flush=True)
        self.kl.update({name: np.array(values) for name, values in means.items()})

    def _mean_kl(
        self, token_ids: torch.Tensor, reference: ReferencePass, found: dict[str, torch.Tensor]
    ) -> dict[str, float]:
        """One call for all formats, so that the reference's logits, half the work of one format, exist once."""
        measures = compare_distributions(
            self.scorer.output_head, reference.hidden[PROMPT_TOKENS:-1], found, token_ids[PROMPT_TOKENS + 1 :]
        )
        return {name: float(measure.kl_nats.mean()) for name, measure in measures.items()}

    def mean(self, name: str) -> Interval:
        return interval(self.kl[name])


def interval(values: np.ndarray) -> Interval:
    """Documents weigh alike: each is one independent unit."""
    bound = cluster_bound(values, np.ones(len(values)), 0.0, replicates=REPLICATES, seed=SEED)
    assert bound.lower is not None, "at least 20 documents are scored"
    assert bound.upper is not None, "at least 20 documents are scored"
    return Interval(bound.estimate, bound.lower, bound.upper)
