"""The teacher-forced level: documents with a fixed history, every decode position of which is a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import run_document, token_rows
from kvassay.assess.examples import WorstExamples
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.plan_entries import ClausePlan, cluster_entry
from kvassay.assess.numeric_level import tensor_rows
from kvassay.core.clauses.slice_plan import is_token_slice, planned_documents, slice_fault
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.slices import ALL
from kvassay.errors import ContractError
from kvassay.judge.fidelity import FIGURES, fidelity_clause
from kvassay.judge.rows import Floats, Integers, TokenTable, read_tokens
from kvassay.judge.token_slices import count_tokens, token_slices
from kvassay.pack.tables import arrow_schema
from kvassay.stats.cluster import document_sums
from kvassay.workloads.conversations import template_name
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import TokenDocument, text_documents


class DocumentLevel(Level):
    """Rows of the table `tokens`, and of `tensors` for the first document."""

    name = "documents"
    words = "documents"

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Draw documents for verdict and pilot, which share none; raises WorkloadError where there are too few."""
        text, inference = contract.text, contract.inference
        self._contract = contract
        self._corpus = load_corpus(text.corpus)
        cells = {document.slice for document in self._corpus.documents}
        if fault := slice_fault(text, contract.fidelity, inference.pilot_documents, cells):
            raise ContractError(fault)
        self._chat_template: str | None = None
        if any(document.messages for document in self._corpus.documents):
            self._chat_template = template_name(tokenizer)
        draw = partial(
            text_documents,
            self._corpus,
            tokenizer,
            prompt_tokens=text.prompt_tokens,
            scored_tokens=text.scored_tokens,
            seed=inference.seed,
            assistant=text.scored == "assistant",
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
        rows = token_rows(subject.scorer, passes, unit.id, unit.cells(prompt))
        for row in rows:
            sink("tokens", row.columns)
            subject.tally.add(row.arm, row.counts)
        if pilot:
            return
        if self._examples is None:
            self._examples = WorstExamples(subject.scorer, subject.tokenizer)
            sink("tensors", tensor_rows(subject.scorer, passes, unit.id, subject.arms, subject.calibrations))
        self._examples.offer(passes, rows, unit.id)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        """For every clause, over all tokens and in each slice that decides, with the judge's own figures and slices."""
        contract = self._contract
        table = pilot_table(rows["tokens"], [arm.name for arm in arms])
        # What is rare is known before the run: it follows from the verdict's documents.
        counts = count_tokens([token for unit in self.units for token in self._scored_ids(unit)])
        planned = {label: self._planned(label) for bound in contract.fidelity.bounds.values() for label in bound.slices}
        entries = []
        for arm in arms:
            of_arm = token_slices(table, table.arms[arm.name], contract.text, counts)
            masks = {part.label: part.mask for part in of_arm.slices}
            for name, bound in contract.fidelity.bounds.items():
                whole = fidelity_clause(name, bound, contract.text.documents)
                for label in (ALL, *bound.slices):
                    none = np.zeros(of_arm.rows.size, dtype=np.bool_)
                    part = of_arm.rows if label == ALL else of_arm.rows.take(masks.get(label, none))
                    documents = contract.text.documents if label == ALL else planned[label]
                    clause = ClausePlan(f"fidelity.{name}", whole.limit, whole.unit, documents, "documents", label)
                    means = document_means(FIGURES[name](part), part.document, whole.threshold)
                    entries.append(cluster_entry(contract.inference, arm, clause, means))
        return entries

    def _planned(self, label: str) -> int:
        documents = self._contract.text.documents
        if is_token_slice(label):
            return documents
        return planned_documents(documents, {unit.slice for unit in self.units}, label)

    def _scored_ids(self, unit: TokenDocument) -> list[int]:
        """True next tokens of the rows that the clauses look at."""
        text = self._contract.text
        ids = unit.token_ids[text.prompt_tokens + 1 :]
        if text.scored == "all":
            return list(ids)
        return [
            token for token, role in zip(ids, unit.scored_roles(text.prompt_tokens), strict=True) if role == "assistant"
        ]

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        total = sum(len(document.token_ids) for document in self.units)
        prompt = self._contract.text.prompt_tokens * len(self.units)
        # Under exact prefill the prompt's keys and values are the reference's, so candidates run the rest alone.
        run_again = total - prompt if self._contract.inference.prefill_reads == "exact" else total
        return Cost(total, run_again * len(arms))

    def to_json(self) -> dict[str, Any]:
        """`sha256` is of all token ids, `scored_sha256` of those that rows hold: the true next token of each.

        `roles` are those of a conversation's rows, in order, each with its number of rows.
        """
        corpus, prompt = self._corpus, self._contract.text.prompt_tokens
        return {
            "corpus": {
                "name": corpus.name,
                "source": corpus.source,
                "version": corpus.version,
                "licence": corpus.licence,
                "sha256": corpus.sha256,
                "chat_template": self._chat_template,
                "documents": [
                    {
                        "id": document.id,
                        "slice": document.slice,
                        "tokens": len(document.token_ids),
                        "sha256": sha256_json(list(document.token_ids)),
                        "scored_sha256": sha256_json(list(document.token_ids[prompt + 1 :])),
                        "roles": run_lengths(document.scored_roles(prompt)),
                    }
                    for document in self.units
                ],
            }
        }

    def pilot_json(self) -> dict[str, Any]:
        return {
            "documents": len(self.pilot_units),
            "document_ids": [document.id for document in self.pilot_units],
        }

    def examples_json(self) -> list[dict[str, Any]]:
        return [] if self._examples is None else self._examples.to_json()


def check_text_length(contract: Contract, context: int | None, model_name: str) -> None:
    """The length of a text is the contract's, so it is checked before the model is read."""
    length = contract.text.prompt_tokens + contract.text.scored_tokens
    if contract.has_fidelity and context is not None and length > context:
        raise ContractError(
            f"text.prompt_tokens + text.scored_tokens is {length}, {model_name} has a context of {context} tokens"
        )


def pilot_table(rows: Sequence[Columns], arms: Sequence[str]) -> TokenTable:
    """The pilot's rows as the judge reads a run's."""
    schema = arrow_schema("tokens")
    columns = {name: [value for part in rows for value in part[name]] for name in schema.names}
    return read_tokens(pa.table(columns, schema=schema), arms)


def document_means(values: Floats, document: Integers, threshold: float | None) -> list[float]:
    """The figure of each document: a mean, or the share of values beyond the threshold."""
    if not len(values):
        return []
    sums, counts = document_sums(values if threshold is None else (values > threshold).astype(np.float64), document)
    return (sums / counts).tolist()


def run_lengths(roles: Sequence[str]) -> list[tuple[str, int]]:
    return [(role, len(list(group))) for role, group in groupby(roles)]
