"""The pilot of a search: what formats lose on a few short documents, none of which a verdict reuses.

Everything that a search chooses, it chooses here. So the formats that are then judged on fresh documents are a fixed
sequence for these, and no correction is owed to how many were looked at.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from kvassay.assess.levels.base import Level
from kvassay.assess.progress import Progress
from kvassay.core.calibration_policy import parse_policy
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.engines.transformers.decode_scorer import DecodeScorer, ReferencePass
from kvassay.errors import KvassayError, SearchError
from kvassay.measures.teacher_forced import TokenMeasures, compare_distributions
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents

FORMATS_AT_ONCE = 8
"""Compared with one computation of the reference's logits."""


class PilotSize(NamedTuple):
    """How much text a search may look at."""

    documents: int = 2
    prompt_tokens: int = 128
    scored_tokens: int = 64


class PilotText(NamedTuple):
    corpus: str
    corpus_sha256: str
    size: PilotSize
    seed: int
    documents: tuple[TokenDocument, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "corpus": self.corpus,
            "corpus_sha256": self.corpus_sha256,
            **self.size._asdict(),
            "documents": [
                {"id": document.id, "sha256": sha256_json(list(document.token_ids))} for document in self.documents
            ],
            "seed": self.seed,
        }


class PilotFigures(NamedTuple):
    """What one format loses, a figure a document."""

    kl_nats: tuple[float, ...]
    by_clause: dict[str, tuple[float, ...]]
    """Of every fidelity clause of the contract, by its dotted name."""

    @property
    def kl_mean(self) -> float:
        return math.fsum(self.kl_nats) / len(self.kl_nats)

    def share_of_limit(self, limits: Mapping[str, float]) -> float | None:
        """The largest mean as a share of its limit, over the clauses; None where the contract has no such clause."""
        shares = [math.fsum(values) / len(values) / limits[name] for name, values in self.by_clause.items()]
        return max(shares, default=None)


def verdict_documents(levels: Sequence[Level]) -> frozenset[str]:
    """Ids of the documents that the verdict will be given on, over all levels that draw documents."""
    return frozenset(unit.id for level in levels for unit in level.units if isinstance(getattr(unit, "id", None), str))


def draw_pilot_text(contract: Contract, tokenizer: Any, size: PilotSize, taken: Collection[str]) -> PilotText:
    """Documents of the contract's corpus that the verdict does not use; raises WorkloadError where there are none."""
    corpus = load_corpus(contract.text.corpus)
    documents = text_documents(
        corpus,
        tokenizer,
        documents=size.documents,
        prompt_tokens=size.prompt_tokens,
        scored_tokens=size.scored_tokens,
        seed=contract.inference.seed,
        exclude=taken,
    )
    return PilotText(corpus.name, corpus.sha256, size, contract.inference.seed, tuple(documents))


class SearchPilot:
    """Scores formats on the pilot's documents. The reference runs once a document."""

    def __init__(self, scorer: DecodeScorer, text: PilotText, contract: Contract) -> None:
        self.text = text
        self.contract = contract
        self._scorer = scorer
        self._policy = parse_policy(contract.inference.calibration)
        self._ids = [torch.tensor(document.token_ids) for document in text.documents]
        self._references = [scorer.reference(ids) for ids in self._ids]
        self._hidden = [
            self._reference_hidden(ids, reference) for ids, reference in zip(self._ids, self._references, strict=True)
        ]

    def refusal(self, kv_format: KVFormat) -> str | None:
        """Why a format cannot be scored here; None where it can."""
        try:
            self._scorer.key_transforms(kv_format)
        except KvassayError as error:
            return str(error)
        return None

    def calibration(self, kv_format: KVFormat) -> Mapping[int, Any]:
        return self._scorer.calibrate(kv_format, self._references, self._policy)

    def figures(self, formats: Mapping[str, KVFormat], progress: Progress) -> dict[str, PilotFigures]:
        """Of every format, by name. One step of progress a format and document."""
        means: dict[str, list[dict[str, float]]] = {name: [] for name in formats}
        for names in _pieces(formats, FORMATS_AT_ONCE):
            scales = {name: self.calibration(formats[name]) for name in names}
            for ids, reference, hidden in zip(self._ids, self._references, self._hidden, strict=True):
                found = {}
                for name in names:
                    run = self._scorer.candidate(ids, self._prompt, reference, formats[name], scales[name])
                    found[name] = run.hidden[:-1]
                    progress.step()
                measures = compare_distributions(self._scorer.output_head, hidden[:-1], found, ids[self._prompt + 1 :])
                for name in names:
                    means[name].append(self._means(name, measures[name]))
        return {
            name: PilotFigures(
                kl_nats=tuple(each["kl"] for each in rows),
                by_clause={clause: tuple(each[clause] for each in rows) for clause in self.limits},
            )
            for name, rows in means.items()
        }

    @property
    def limits(self) -> dict[str, float]:
        """Of the fidelity clauses, by dotted name."""
        return {f"fidelity.{name}": bound.limit for name, bound in self.contract.fidelity.bounds.items()}

    @property
    def _prompt(self) -> int:
        return self.text.size.prompt_tokens

    def _reference_hidden(self, ids: torch.Tensor, reference: ReferencePass) -> torch.Tensor:
        kind = self.contract.subject.reference_kv
        if kind == "f32":
            return reference.hidden[self._prompt :]
        return self._scorer.candidate(ids, self._prompt, reference, parse_format(kind)).hidden

    def _means(self, name: str, measures: TokenMeasures) -> dict[str, float]:
        kl = measures.kl_nats.double()
        if not bool(torch.isfinite(kl).all()):
            raise SearchError(f"{name}: KL is not finite at {int((~torch.isfinite(kl)).sum())} positions of the pilot")
        means = {"kl": float(kl.mean())}
        fidelity = self.contract.fidelity
        if fidelity.kl_mean is not None:
            means["fidelity.kl_mean"] = means["kl"]
        if fidelity.kl_exceed is not None:
            means["fidelity.kl_exceed"] = float((kl > fidelity.kl_exceed.tau_nats).double().mean())
        if fidelity.nll_delta is not None:
            rise = measures.nll_candidate_nats.double() - measures.nll_reference_nats.double()
            means["fidelity.nll_delta"] = float(rise.mean())
        return means


def _pieces(names: Mapping[str, Any], size: int) -> Iterator[list[str]]:
    left = iter(names)
    while piece := list(islice(left, size)):
        yield piece
