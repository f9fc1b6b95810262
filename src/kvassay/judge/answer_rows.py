"""Rows of written answers by task and arm, in an order that does not depend on how the rows came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.contract import Contract
from kvassay.core.records import ANSWER_COLUMNS
from kvassay.core.slices import ALL, slice_labels
from kvassay.core.tasks.answers import AnswerForm, GeneratedScore
from kvassay.core.tasks.kinds import KINDS, task_draw
from kvassay.core.tasks.settings import TaskSettings
from kvassay.judge.generation_rows import GenerationRow, OutputRows, output_order
from kvassay.judge.rows import ArrowTable


class AnswerRow(NamedTuple):
    """One item under one arm."""

    output: GenerationRow
    """Its prompt is the item's context, by name."""
    context_tokens: int | None
    reference_text: str
    candidate_text: str

    @property
    def context(self) -> str:
        return self.output.prompt

    @property
    def labels(self) -> tuple[str, ...]:
        return self.output.labels


AnswerTable = dict[str, dict[str, tuple[AnswerRow, ...]]]
"""By task and arm, for arms that have any."""


class ScoredAnswer(NamedTuple):
    """What the texts of a row show of the item that the contract asks."""

    reference: GeneratedScore
    candidate: GeneratedScore
    same: bool
    """Equal as answers, right or wrong."""
    empty: tuple[bool, bool]
    """Whether reference and candidate wrote nothing but white space."""
    right_line_shares: tuple[float, float] | None
    """Of reference and candidate, where answers are judged line by line."""


def read_answers(table: ArrowTable | None, arms: Sequence[str]) -> AnswerTable:
    """Rows of every task and arm; raises PackError as `read_generations` does. None is a table without rows."""
    found: dict[str, dict[str, list[AnswerRow]]] = {}
    for row in OutputRows("answer", "context", ANSWER_COLUMNS).read(table, arms):
        answer = AnswerRow(
            row.output(), row.number("context_tokens", int), row.text("reference_text"), row.text("candidate_text")
        )
        found.setdefault(row.text("task"), {}).setdefault(row.text("arm"), []).append(answer)
    return {
        task: {arm: tuple(sorted(found[task][arm], key=_order)) for arm in sorted(found[task])}
        for task in sorted(found)
    }


def scored(contract: Contract, task: str, bound: TaskBound, rows: Sequence[AnswerRow]) -> Iterator[ScoredAnswer]:
    """The scores of rows that are all of items that the contract asks, as `judge.answer_faults` checks."""
    form = KINDS[bound.kind].form
    for row in rows:
        index = int(row.context.rpartition("/")[2])
        expected = _expected(task, bound.settings, contract.inference.seed, index)
        yield ScoredAnswer(
            reference=form.scored(expected, row.reference_text),
            candidate=form.scored(expected, row.candidate_text),
            same=form.same(expected, row.reference_text, row.candidate_text),
            empty=(not row.reference_text.strip(), not row.candidate_text.strip()),
            right_line_shares=_line_shares(form, expected, row),
        )


@lru_cache(maxsize=1 << 14)
def _expected(task: str, settings: TaskSettings, seed: int, index: int) -> str:
    """Every arm, slice and clause asks for it again."""
    return task_draw(task, settings, seed, index).expected


def in_slice(rows: Sequence[AnswerRow], label: str) -> tuple[AnswerRow, ...]:
    return tuple(row for row in rows if label == ALL or label in row.labels)


def answer_labels(table: AnswerTable, task: str) -> list[str]:
    """Labels of a task's rows in sorted order, but for the one that every row has."""
    cells = {row.output.slice for rows in table.get(task, {}).values() for row in rows}
    return sorted({label for cell in cells for label in slice_labels(cell)} - {ALL})


def _line_shares(form: AnswerForm, expected: str, row: AnswerRow) -> tuple[float, float] | None:
    if form.right_lines is None:
        return None
    lines = form.right_lines(expected, expected)
    reference, candidate = (form.right_lines(expected, text) for text in (row.reference_text, row.candidate_text))
    return reference / lines, candidate / lines


def _order(row: AnswerRow) -> tuple[Any, ...]:
    return (*output_order(row.output), row.reference_text, row.candidate_text, repr(row.context_tokens))
