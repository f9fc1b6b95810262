"""The task level: items with a right answer, scored teacher-forced under the reference and under every arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import answers, run_document
from kvassay.assess.levels.base import Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.plan_entries import ClausePlan, PairedCounts, pairs_entry
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.recall_rule import TASK, is_right
from kvassay.errors import ContractError
from kvassay.workloads.recall import RecallItem, recall_items


class ItemLevel(Level):
    """Rows of the table `items`."""

    name = "items"
    words = "recall items"

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        self._contract = contract
        self._bound = contract.task[TASK]
        pilot = contract.inference.pilot_items
        items = recall_items(
            tokenizer,
            items=pilot + self._bound.items,
            context_lines=self._bound.context_lines,
            seed=contract.inference.seed,
        )
        self.pilot_units: Sequence[RecallItem] = items[:pilot]
        self.units: Sequence[RecallItem] = items[pilot:]

    def token_ids(self, unit: RecallItem) -> Sequence[int]:
        return unit.prompt_ids + unit.question_ids + unit.answer_ids

    def measure(self, subject: Subject, unit: RecallItem, sink: Sink, *, pilot: bool = False) -> None:
        prompt_tokens = len(unit.prompt_ids)
        passes = run_document(
            subject.scorer,
            self.token_ids(unit),
            prompt_tokens,
            subject.arms,
            subject.calibrations,
            subject.reference_kv,
        )
        expected = list(unit.answer_ids)
        reference, found = answers(subject.scorer, passes, len(expected))
        for answer, run in zip(found, passes.arms, strict=True):
            subject.tally.add(answer.arm, run.candidate.counts)
        count = len(found)
        true_answer = subject.tokenizer.decode(expected)
        reference_answer = subject.tokenizer.decode(reference)
        candidate_answers = [subject.tokenizer.decode(answer.token_ids) for answer in found]
        columns = {
            "arm": [answer.arm for answer in found],
            "task": [TASK] * count,
            "slice": [unit.slice] * count,
            "context": [unit.id] * count,
            "context_tokens": [prompt_tokens] * count,
            "question": [unit.question] * count,
            "expected": [true_answer] * count,
            "reference_answer": [reference_answer] * count,
            "candidate_answer": candidate_answers,
            "reference_correct": [is_right(reference_answer, true_answer)] * count,
            "candidate_correct": [is_right(answer, true_answer) for answer in candidate_answers],
            "stored_reads": [answer.stored_reads for answer in found],
        }
        sink("items", columns)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        bound = self._bound
        clause = ClausePlan(f"task.{TASK}", -bound.margin, "share of items", bound.items, "contexts")
        outcomes = [
            (arm, before, after)
            for columns in rows["items"]
            for arm, before, after in zip(
                columns["arm"], columns["reference_correct"], columns["candidate_correct"], strict=True
            )
        ]
        entries = []
        for arm in arms:
            own = [(before, after) for name, before, after in outcomes if name == arm.name]
            losses = sum(before and not after for before, after in own)
            gains = sum(after and not before for before, after in own)
            entries.append(pairs_entry(self._contract.inference, arm, clause, PairedCounts(len(own), losses, gains)))
        return entries

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        total = sum(len(self.token_ids(item)) for item in self.units)
        prompt = sum(len(item.prompt_ids) for item in self.units)
        run_again = total - prompt if self._contract.inference.prefill_reads == "exact" else total
        return Cost(total, run_again * len(arms))

    def to_json(self) -> dict[str, Any]:
        return {
            "items_sha256": sha256_json([list(self.token_ids(item)) for item in self.units]),
            "task": {
                TASK: {
                    "items": self._bound.items,
                    "context_lines": self._bound.context_lines,
                    "seed": self._contract.inference.seed,
                }
            },
        }

    def check_lengths(self, context: int | None, model_name: str) -> None:
        """How long an item is depends on the tokenizer, so it is known only now."""
        longest = max(len(self.token_ids(item)) for item in (*self.pilot_units, *self.units))
        if context is not None and longest > context:
            lines = self._bound.context_lines
            raise ContractError(
                f"task.recall: items with context_lines = {lines} have up to {longest} tokens, "
                f"{model_name} has a context of {context} tokens; at most about "
                f"{max(1, lines * context // longest)} lines fit"
            )
