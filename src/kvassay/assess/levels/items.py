"""The task level: items with a right answer, scored teacher-forced under the reference and under every arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import answers, run_document
from kvassay.assess.levels.base import Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.plan_entries import ClausePlan, PairedCounts, pairs_entry
from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.slices import ALL, slice_labels
from kvassay.core.tasks.kinds import is_right
from kvassay.errors import ContractError
from kvassay.workloads.tasks.items import TaskItem, task_items


class ItemLevel(Level):
    """Rows of the table `items`, of all tasks of the contract that are scored teacher-forced."""

    name = "items"
    words = "task items"

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Draw the items of every task; raises WorkloadError for a length that cannot be had."""
        self._contract = contract
        self._tasks = contract.teacher_forced_tasks
        pilot, seed = contract.inference.pilot_items, contract.inference.seed
        drawn = {
            name: task_items(tokenizer, name, bound.settings, seed, range(pilot + bound.items))
            for name, bound in self._tasks.items()
        }
        # In turn, since static scales may be calibrated on the first few.
        self.pilot_units: Sequence[TaskItem] = [items[index] for index in range(pilot) for items in drawn.values()]
        self.units: Sequence[TaskItem] = [item for items in drawn.values() for item in items[pilot:]]

    @property
    def parts(self) -> Sequence[Sequence[TaskItem]]:
        """By task: each has its own stopping rule."""
        return [[item for item in self.units if item.task == name] for name in self._tasks]

    def token_ids(self, unit: TaskItem) -> Sequence[int]:
        return unit.token_ids

    def measure(self, subject: Subject, unit: TaskItem, sink: Sink, *, pilot: bool = False) -> None:
        prompt_tokens = len(unit.prompt_ids)
        passes = run_document(
            subject.scorer,
            unit.token_ids,
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
            "task": [unit.task] * count,
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
        """For each task, over all items and for each slice that decides."""
        entries = []
        for arm in arms:
            for name, bound in self._tasks.items():
                for part in (ALL, *bound.slices):
                    counts = _paired_counts(rows, arm.name, name, part)
                    entries.append(pairs_entry(self._contract.inference, arm, self._clause(name, bound, part), counts))
        return entries

    def _clause(self, name: str, bound: TaskBound, part: str) -> ClausePlan:
        planned = bound.items if part == ALL else bound.planned(part, self._contract.inference.pilot_items)
        return ClausePlan(f"task.{name}", -bound.margin, "share of items", planned, "contexts", part)

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        total = sum(len(item.token_ids) for item in self.units)
        prompt = sum(len(item.prompt_ids) for item in self.units)
        run_again = total - prompt if self._contract.inference.prefill_reads == "exact" else total
        return Cost(total, run_again * len(arms))

    def to_json(self) -> dict[str, Any]:
        return {
            "items_sha256": sha256_json([list(item.token_ids) for item in self.units]),
            "task": {
                name: {
                    "kind": bound.kind,
                    "items": bound.items,
                    **{key: value for key, value in bound.settings._asdict().items() if value not in (None, ())},
                    "seed": self._contract.inference.seed,
                }
                for name, bound in self._tasks.items()
            },
        }

    def check_lengths(self, context: int | None, model_name: str) -> None:
        """How long an item is depends on the tokenizer, so it is known only now."""
        for name, bound in self._tasks.items():
            longest = max(len(item.token_ids) for item in (*self.pilot_units, *self.units) if item.task == name)
            if context is None or longest <= context:
                continue
            lines = bound.context_lines
            given = f"context_lines = {lines}" if lines else f"context_tokens = {list(bound.context_tokens)}"
            way_out = (
                f"at most about {max(1, lines * context // longest)} lines fit"
                if lines
                else f"write context_tokens of at most {context}"
            )
            raise ContractError(
                f"task.{name}: items with {given} have up to {longest} tokens, "
                f"{model_name} has a context of {context} tokens; {way_out}"
            )


def _paired_counts(rows: PilotRows, arm: str, task: str, part: str) -> PairedCounts:
    """Of the pilot's items of one arm and task that lie in a slice."""
    n = losses = gains = 0
    names = ("arm", "task", "slice", "reference_correct", "candidate_correct")
    for columns in rows["items"]:
        for of_arm, of_task, cell, before, after in zip(*(columns[name] for name in names), strict=True):
            if of_arm == arm and of_task == task and (part == ALL or part in slice_labels(cell)):
                n += 1
                losses += before and not after
                gains += after and not before
    return PairedCounts(n, losses, gains)
