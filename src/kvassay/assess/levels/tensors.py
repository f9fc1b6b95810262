"""The numeric level: captured documents, every layer and KV head of which is a row under each substitution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.documents import DocumentLevel
from kvassay.assess.levels.plan_entries import ClausePlan, cluster_entry
from kvassay.assess.levels.text_source import TextSource
from kvassay.assess.numeric_level import tensor_rows
from kvassay.core.clauses.numeric import FIGURE_UNITS, in_slice
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.slices import ALL
from kvassay.workloads.excerpts import TokenDocument


class TensorLevel(Level):
    """Rows of the table `tensors`. Documents are those of the contract's text, as many as `numeric.documents`."""

    name = "tensors"
    words = "captured documents"
    is_text = True

    def __init__(self, contract: Contract, tokenizer: Any, scored: DocumentLevel | None) -> None:
        """`scored` are the documents of the teacher-forced level, whose pilot serves here too."""
        self._contract = contract
        self._scored = scored
        self._source = TextSource(contract, tokenizer) if scored is None else scored.source
        pilot = () if scored is None else scored.pilot_units
        self.units: Sequence[TokenDocument] = self._source.draw(
            contract.numeric.documents, exclude={document.id for document in pilot}
        )
        if scored is None:
            taken = {document.id for document in self.units}
            pilot = self._source.draw(contract.inference.pilot_documents, exclude=taken)
        # Without a bound there is nothing to plan.
        self.pilot_units: Sequence[TokenDocument] = pilot if contract.numeric.bounds else ()

    def token_ids(self, unit: TokenDocument) -> Sequence[int]:
        return unit.token_ids

    def measure(self, subject: Subject, unit: TokenDocument, sink: Sink, *, pilot: bool = False) -> None:
        rows = tensor_rows(
            subject.scorer,
            unit.token_ids,
            self._contract.text.prompt_tokens,
            self._contract.captured_queries,
            unit.id,
            subject.arms,
            subject.calibrations,
        )
        sink("tensors", rows.columns)
        for arm, counts in rows.counts.items():
            subject.tally.add(arm, counts)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        numeric, inference = self._contract.numeric, self._contract.inference
        entries = []
        for arm in arms:
            for name, bound in numeric.bounds.items():
                clause = ClausePlan(f"numeric.{name}", bound.max, FIGURE_UNITS[name], numeric.documents, "documents")
                for label in (ALL, *bound.slices):
                    worst = [_worst_cell(columns, arm.name, label, name) for columns in rows["tensors"]]
                    # An arm that stores nothing of pilot documents has no figure to plan from.
                    if len(measured := [value for value in worst if value is not None]) > 1:
                        entries.append(cluster_entry(inference, arm, clause._replace(slice=label), measured))
        return entries

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        """Every arm is measured on one more pass of the reference, and runs no model."""
        total = sum(len(document.token_ids) for document in self.units)
        return Cost(2 * total - self._shared_prompt(), 0)

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "numeric": {
                "queries": self._contract.captured_queries,
                "documents": [
                    {
                        "id": document.id,
                        "tokens": len(document.token_ids),
                        "sha256": sha256_json(list(document.token_ids)),
                    }
                    for document in self.units
                ],
            }
        }
        if self._scored is None:
            record |= self._source.to_json(self.units)
        return record

    def pilot_json(self) -> dict[str, Any]:
        if self._scored is not None:
            return {self.name: len(self.pilot_units)}
        ids = [document.id for document in self.pilot_units]
        return {"documents": len(ids), "document_ids": ids, self.name: len(ids)}

    def _shared_prompt(self) -> int:
        """Prompt tokens that the second pass takes from the first."""
        exact = self._contract.inference.prefill_reads == "exact"
        return self._contract.text.prompt_tokens * len(self.units) if exact else 0


def _worst_cell(columns: Columns, arm: str, label: str, figure: str) -> float | None:
    """The largest figure of one document's cells in a slice; None where none was measured."""
    layers = 1 + max(columns["layer"])
    rows = zip(columns["arm"], columns["substituted"], columns["layer"], columns[figure], strict=True)
    found = [value for name, side, layer, value in rows if name == arm and in_slice(label, side, layer, layers)]
    return max((value for value in found if value is not None), default=None)
