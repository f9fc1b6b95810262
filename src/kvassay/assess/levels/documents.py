"""The teacher-forced level: documents with a fixed history, every decode position of which is a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import run_document, token_rows
from kvassay.assess.examples import WorstExamples
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.plan_entries import ClausePlan, cluster_entry
from kvassay.assess.levels.text_source import TextSource
from kvassay.core.clauses.slice_plan import is_token_slice, planned_documents, slice_fault
from kvassay.core.contract import Contract
from kvassay.core.slices import ALL
from kvassay.errors import ContractError
from kvassay.judge.fidelity import FIGURES, fidelity_clause
from kvassay.judge.rows import Floats, Integers, TokenTable, read_tokens
from kvassay.judge.token_slices import count_tokens, token_slices
from kvassay.pack.tables import arrow_schema
from kvassay.stats.cluster import document_sums
from kvassay.workloads.excerpts import TokenDocument


class DocumentLevel(Level):
    """Rows of the table `tokens`."""

    name = "documents"
    words = "documents"
    is_text = True

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Draw documents for verdict and pilot, which share none; raises WorkloadError where there are too few."""
        text, inference = contract.text, contract.inference
        self._contract = contract
        self.source = TextSource(contract, tokenizer)
        cells = {document.slice for document in self.source.corpus.documents}
        if fault := slice_fault(text, contract.fidelity, inference.pilot_documents, cells):
            raise ContractError(fault)
        self.units: Sequence[TokenDocument] = self.source.draw(text.documents)
        taken = {document.id for document in self.units}
        self.pilot_units: Sequence[TokenDocument] = self.source.draw(inference.pilot_documents, exclude=taken)
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
        return self.source.to_json(self.units)

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
    if contract.needs_text and context is not None and length > context:
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
