"""Written answers: tasks whose answers the model writes by itself, greedily, over a real cache of every format.

The context runs in one piece and the question behind it in another, so that already the first token of an answer comes
from a query that read the stored context; under teacher forcing the question reads it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Columns, Cost, Level, PilotRows, Sink, Subject
from kvassay.assess.levels.outputs import output_columns
from kvassay.assess.levels.plan_entries import ClausePlan, PairedCounts, pairs_entry
from kvassay.core.clauses.tasks import PARSE, TaskBound
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.format_names import parse_format
from kvassay.core.slices import ALL, slice_labels
from kvassay.core.tasks.answers import MAX_ANSWER_CHARACTERS, GeneratedScore
from kvassay.core.tasks.kinds import KINDS
from kvassay.engines.transformers.generating import (
    CacheFormat,
    Generation,
    GenerationPlan,
    Generator,
    Output,
    Prompt,
    end_token_ids,
)
from kvassay.engines.transformers.sampling import Greedy
from kvassay.errors import ContractError
from kvassay.workloads.tasks.written import WrittenItem, written_items


class AnswerLevel(Level):
    """Rows of the table `answers`, of all tasks whose answers are written."""

    name = "answers"
    words = "written answers"
    generates = True

    def __init__(self, contract: Contract, tokenizer: Any) -> None:
        """Draw the items of every such task; raises WorkloadError for a length that cannot be had."""
        self._contract = contract
        self._tasks = contract.written_tasks
        self._tokenizer = tokenizer
        self._end_ids: frozenset[int] = frozenset()
        pilot, seed = contract.inference.pilot_items, contract.inference.seed
        drawn = {
            name: written_items(tokenizer, name, bound, seed, range(pilot + bound.items))
            for name, bound in self._tasks.items()
        }
        # In turn, since static scales may be calibrated on the first few.
        self.pilot_units: Sequence[WrittenItem] = [items[index] for index in range(pilot) for items in drawn.values()]
        self.units: Sequence[WrittenItem] = [item for items in drawn.values() for item in items[pilot:]]
        self._expected = {item.id: item.expected for items in drawn.values() for item in items}

    def batches(self, units: Sequence[Any]) -> list[Sequence[Any]]:
        """Items of one task whose contexts and questions are equally long, at most so many together.

        Which run together follows from the items alone, so reference and formats share what a batch's shape rounds.
        """
        most = self._contract.free_running.batch_prompts
        alike: dict[tuple[str, int, int], list[WrittenItem]] = {}
        for item in units:
            alike.setdefault((item.task, len(item.context_ids), len(item.question_ids)), []).append(item)
        return [same[begin : begin + most] for same in alike.values() for begin in range(0, len(same), most)]

    def token_ids(self, unit: WrittenItem) -> Sequence[int]:
        return unit.token_ids

    def measure(self, subject: Subject, unit: WrittenItem, sink: Sink, *, pilot: bool = False) -> None:
        self._measure_batch(subject, (unit,), sink, lambda: None)

    def measure_all(
        self, subject: Subject, units: Sequence[Any], sink: Sink, done: Callable[[], object], *, pilot: bool = False
    ) -> None:
        for batch in self.batches(units):
            self._measure_batch(subject, batch, sink, done)

    def plan(self, arms: Sequence[PlannedArm], rows: PilotRows) -> list[dict[str, Any]]:
        """For each task, over all items and for each slice that decides: accuracy, and the parse rate where bound."""
        entries: list[dict[str, Any]] = []
        for arm in arms:
            for name, bound in self._tasks.items():
                for part in (ALL, *bound.slices):
                    scores = self._pilot_scores(rows, arm.name, name, part)
                    planned = bound.items if part == ALL else bound.planned(part, self._contract.inference.pilot_items)
                    for clause, margin, sound in _clauses(name, bound):
                        counts = PairedCounts(
                            len(scores),
                            losses=sum(sound(before) and not sound(after) for before, after in scores),
                            gains=sum(sound(after) and not sound(before) for before, after in scores),
                        )
                        planned_clause = ClausePlan(clause, -margin, "share of items", planned, "contexts", part)
                        entries.append(pairs_entry(self._contract.inference, arm, planned_clause, counts))
        return entries

    def cost(self, arms: Sequence[PlannedArm]) -> Cost:
        """As if every answer had its most tokens, of which the last is not fed back; most end earlier."""
        total = sum(len(item.prompt_ids) + item.most_tokens - 1 for item in self.units)
        return Cost(total, total * len(arms))

    def to_json(self) -> dict[str, Any]:
        """`sha256` is of an item's prompt, whose token ids the rows hold."""
        return {
            "written": {
                "end_ids": sorted(self._end_ids),
                "tasks": {name: self._task_json(bound) for name, bound in self._tasks.items()},
                "items": [{"id": item.id, "sha256": sha256_json(list(item.prompt_ids))} for item in self.units],
            }
        }

    def check_lengths(self, context: int | None, model_name: str) -> None:
        """How long an item is depends on the tokenizer, so it is known only now."""
        for item in (*self.pilot_units, *self.units):
            longest = len(item.prompt_ids) + item.most_tokens
            if context is not None and longest > context:
                bound = self._tasks[item.task]
                raise ContractError(
                    f"task.{item.task}: {item.id} has a prompt of {len(item.prompt_ids)} tokens and an answer of up to "
                    f"{item.most_tokens}, {model_name} has a context of {context} tokens; write fewer "
                    f"{'lines' if bound.lines else 'context_lines' if bound.context_lines else 'context_tokens'}"
                )

    def _task_json(self, bound: TaskBound) -> dict[str, Any]:
        given = {key: value for key, value in bound.settings._asdict().items() if value not in (None, ())}
        return {"kind": bound.kind, "items": bound.items, **given, "seed": self._contract.inference.seed}

    def _measure_batch(
        self, subject: Subject, items: Sequence[WrittenItem], sink: Sink, done: Callable[[], object]
    ) -> None:
        """Items of one task, with contexts and questions of equal length."""
        generator = Generator(subject.model, subject.scorer.output_head)
        self._end_ids = end_token_ids(subject.model)
        plan = GenerationPlan(
            prompts=tuple(Prompt(item.id, item.prompt_ids) for item in items),
            tokens=max(item.most_tokens for item in items),
            end_ids=self._end_ids,
            sampling=Greedy(),
            prefill_reads=self._contract.inference.prefill_reads,
            context_tokens=len(items[0].context_ids),
            ended=lambda row, ids: self._is_over(items[row], ids),
            ended_by=[[self._tasks[item.task].kind, item.expected, item.most_tokens] for item in items],
        )
        reference = subject.generate_reference(generator, plan, CacheFormat(parse_format(subject.reference_kv)))
        arms = len(subject.arms)
        for index, arm in enumerate(subject.arms):
            transforms = subject.scorer.key_transforms(arm.kv_format)
            found = generator.run(plan, CacheFormat(arm.kv_format, subject.calibrations.get(arm.name), transforms))
            subject.tally.add(arm.name, found.counts)
            sink("answers", self._columns(arm.name, items, reference, found))
            # A batch's items all end with its last arm, so each arm counts as its share of them.
            for _ in range((index + 1) * len(items) // arms - index * len(items) // arms):
                done()

    def _is_over(self, item: WrittenItem, ids: Sequence[int]) -> bool:
        if len(ids) >= item.most_tokens:
            return True
        return KINDS[self._tasks[item.task].kind].form.ended(item.expected, self._text(ids))

    def _text(self, ids: Sequence[int]) -> str:
        """What was written, without the token that ended it."""
        said = ids[:-1] if ids and ids[-1] in self._end_ids else ids
        text: str = self._tokenizer.decode(list(said), clean_up_tokenization_spaces=False)
        return text[:MAX_ANSWER_CHARACTERS]

    def _columns(self, arm: str, items: Sequence[WrittenItem], reference: Generation, found: Generation) -> Columns:
        count = len(items)
        return {
            "arm": [arm] * count,
            "task": [item.task for item in items],
            "slice": [item.slice for item in items],
            "context": [item.id for item in items],
            "context_tokens": [len(item.context_ids) for item in items],
            **output_columns([item.prompt_ids for item in items], self._end_ids, reference, found, first_step=0),
            "reference_text": self._texts(reference.outputs),
            "candidate_text": self._texts(found.outputs),
        }

    def _texts(self, outputs: Sequence[Output]) -> list[str]:
        return [self._text(output.token_ids) for output in outputs]

    def _pilot_scores(
        self, rows: PilotRows, arm: str, task: str, part: str
    ) -> list[tuple[GeneratedScore, GeneratedScore]]:
        """Of reference and arm, for the pilot's items of one task that lie in a slice."""
        kind = KINDS[self._tasks[task].kind]
        names = ("arm", "task", "slice", "context", "reference_text", "candidate_text")
        return [
            (kind.scored(self._expected[context], before), kind.scored(self._expected[context], after))
            for columns in rows["answers"]
            for of_arm, of_task, cell, context, before, after in zip(*(columns[name] for name in names), strict=True)
            if of_arm == arm and of_task == task and (part == ALL or part in slice_labels(cell))
        ]


def _clauses(name: str, bound: TaskBound) -> list[tuple[str, float, Callable[[GeneratedScore], bool]]]:
    """Name, margin and what makes an answer sound, of each clause on a task."""
    found: list[tuple[str, float, Callable[[GeneratedScore], bool]]] = [
        (f"task.{name}", bound.margin, lambda score: score.right)
    ]
    if bound.parse_margin is not None:
        found.append((f"task.{name}.{PARSE}", bound.parse_margin, lambda score: bool(score.parses)))
    return found
