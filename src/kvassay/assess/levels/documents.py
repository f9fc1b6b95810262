"""The teacher-forced level: documents with a fixed history, every decode position of which is a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import run_document, token_rows
from kvassay.assess.examples import WorstExamples
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.plan_entries import ClausePlan, cluster_entry
from kvassay.core.clauses.fidelity import KlExceedBound
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.errors import ContractError
from kvassay.workloads.corpus import Corpus, load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents


class DocumentLevel(Level):
    """Rows of the table `tokens`."""

    name = "documents"
    words = "documents"
    is_text = True

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Draw documents for verdict and pilot, which share none; raises WorkloadError where there are too few."""
        text, inference = contract.text, contract.inference
        self._contract = contract
        self.corpus = load_corpus(text.corpus)
        draw = partial(
            text_documents,
            self.corpus,
            tokenizer,
            prompt_tokens=text.prompt_tokens,
            scored_tokens=text.scored_tokens,
            seed=inference.seed,
        )
        self.units: Sequence[TokenDocument] = draw(documents=text.documents)
        taken = {document.id for document in self.units}
        self.pilot_units: Sequence[TokenDocument] = draw(documents=inference.pilot_documents, exclude=taken)
        self._examples: WorstExamples | None = None

    def token_ids(self, unit: TokenDocument) -> Sequence[int]:
        return unit.token_ids

    def measure(self, subject: Subject, unit: TokenDocument, sink: Sink, *, pilot: bool = False) -> None:
        prompt = self._contract.text.prompt_tokens
        passes = run_document(
            subject.scorer, unit.token_ids, prompt, subject.arms, subject.calibrations, subject.reference_kv
        )
        rows = token_rows(subject.scorer, passes, unit.id, unit.slice)
        for row in rows:
            sink("tokens", row.columns)
            subject.tally.add(row.arm, row.counts)
        if pilot:
            return
        if self._examples is None:
            self._examples = WorstExamples(subject.scorer, subject.tokenizer)
        self._examples.offer(passes, rows, unit.id)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        contract = self._contract
        entries = []
        for arm in arms:
            documents = [columns for columns in rows["tokens"] if columns["arm"][0] == arm.name]
            for name, bound in contract.fidelity.bounds.items():
                tau_nats = bound.tau_nats if isinstance(bound, KlExceedBound) else None
                limit, unit = (
                    (bound.max_rate, "share") if isinstance(bound, KlExceedBound) else (bound.max, "nats/token")
                )
                clause = ClausePlan(f"fidelity.{name}", limit, unit, contract.text.documents, "documents")
                means = [_mean(name, columns, tau_nats) for columns in documents]
                entries.append(cluster_entry(contract.inference, arm, clause, means))
        return entries

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        total = sum(len(document.token_ids) for document in self.units)
        prompt = self._contract.text.prompt_tokens * len(self.units)
        # Under exact prefill the prompt's keys and values are the reference's, so candidates run the rest alone.
        run_again = total - prompt if self._contract.inference.prefill_reads == "exact" else total
        return Cost(total, run_again * len(arms))

    def to_json(self) -> dict[str, Any]:
        return corpus_json(self.corpus, self.units, self._contract.text.prompt_tokens)

    def pilot_json(self) -> dict[str, Any]:
        return {
            "documents": len(self.pilot_units),
            "document_ids": [document.id for document in self.pilot_units],
        }

    def examples_json(self) -> list[dict[str, Any]]:
        return [] if self._examples is None else self._examples.to_json()


def corpus_json(corpus: Corpus, documents: Sequence[TokenDocument], prompt_tokens: int) -> dict[str, Any]:
    """`sha256` is of all token ids, `scored_sha256` of those that token rows hold: the true next token of each."""
    return {
        "corpus": {
            "name": corpus.name,
            "source": corpus.source,
            "version": corpus.version,
            "licence": corpus.licence,
            "sha256": corpus.sha256,
            "documents": [
                {
                    "id": document.id,
                    "slice": document.slice,
                    "tokens": len(document.token_ids),
                    "sha256": sha256_json(list(document.token_ids)),
                    "scored_sha256": sha256_json(list(document.token_ids[prompt_tokens + 1 :])),
                }
                for document in documents
            ],
        }
    }


def check_text_length(contract: Contract, context: int | None, model_name: str) -> None:
    """The length of a text is the contract's, so it is checked before the model is read."""
    length = contract.text.prompt_tokens + contract.text.scored_tokens
    if contract.needs_text and context is not None and length > context:
        raise ContractError(
            f"text.prompt_tokens + text.scored_tokens is {length}, {model_name} has a context of {context} tokens"
        )


def _mean(clause: str, columns: Columns, tau_nats: float | None) -> float:
    """The figure of one document."""
    kl = columns["kl_nats"]
    if tau_nats is not None:
        return sum(value > tau_nats for value in kl) / len(kl)
    if clause == "nll_delta":
        pairs = zip(columns["nll_candidate_nats"], columns["nll_reference_nats"], strict=True)
        return math.fsum(candidate - reference for candidate, reference in pairs) / len(kl)
    return math.fsum(kl) / len(kl)
