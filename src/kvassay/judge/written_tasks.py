"""Clauses on tasks whose answers the model writes by itself: accuracy, and apart from it the share that parses.

Both are paired against the reference, which writes its own answers, and judged as teacher-forced tasks are. Right and
parsed follow from the rows' texts and from the item that the contract draws; no row can claim either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kvassay.core.clauses.tasks import PARSE, TaskBound
from kvassay.core.contract import Contract
from kvassay.core.slices import ALL
from kvassay.core.tasks.kinds import KINDS
from kvassay.judge.answer_rows import AnswerRow, AnswerTable, ScoredAnswer, answer_labels, in_slice, scored
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rate_clauses import Pairs
from kvassay.judge.task import PairedClause, judge_paired, no_items, unusable_items

MEASURE = "written"
"""An answer is right if the text that the model wrote by itself is; see `core.tasks.answers`."""


def written_clauses(
    contract: Contract,
    task: str,
    bound: TaskBound,
    table: AnswerTable,
    rows: Sequence[AnswerRow] | None,
    faults: tuple[str, ...],
) -> Iterator[JudgedClause]:
    """Over all items, then for each slice: those that the contract names decide, others are descriptive."""
    for label in (ALL, *bound.slices, *(name for name in answer_labels(table, task) if name not in bound.slices)):
        part = None if rows is None else in_slice(rows, label)
        clauses = _clauses(task, bound, label)
        if not part:
            if clauses[0].decisive:
                yield from (no_items(clause) for clause in clauses)
        # A slice that holds every row would be said twice.
        elif label == ALL or label in bound.slices or len(part) < len(rows or ()):
            if faults:
                yield from (unusable_items(clause, faults, len(part)) for clause in clauses)
            else:
                yield from _judged(contract, task, bound, clauses, part)


def reference_written_accuracy(contract: Contract, task: str, rows: Sequence[AnswerRow]) -> float:
    """Of rows without faults."""
    found = list(scored(contract, task, contract.task[task], rows))
    return sum(score.reference.right for score in found) / len(found)


def _clauses(task: str, bound: TaskBound, label: str) -> list[PairedClause]:
    found = [PairedClause(task, bound, bound.margin, label, MEASURE)]
    if bound.parse_margin is not None:
        found.append(PairedClause(task, bound, bound.parse_margin, label, MEASURE, part=PARSE, figure="parse rate"))
    return found


def _judged(
    contract: Contract, task: str, bound: TaskBound, clauses: Sequence[PairedClause], rows: Sequence[AnswerRow]
) -> Iterator[JudgedClause]:
    found = list(scored(contract, task, bound, rows))
    shared = _details(bound, found)
    for clause in clauses:
        right = clause.part != PARSE
        pairs = Pairs(
            [score.reference.right if right else bool(score.reference.parses) for score in found],
            [score.candidate.right if right else bool(score.candidate.parses) for score in found],
        )
        yield judge_paired(contract, clause, pairs).with_details(**shared)


def _details(bound: TaskBound, found: Sequence[ScoredAnswer]) -> dict[str, float]:
    n = len(found)
    details = {
        "reference_accuracy": sum(score.reference.right for score in found) / n,
        "candidate_accuracy": sum(score.candidate.right for score in found) / n,
        "equal_answers": sum(score.same for score in found) / n,
        "reference_empty": sum(score.empty[0] for score in found) / n,
        "candidate_empty": sum(score.empty[1] for score in found) / n,
    }
    if KINDS[bound.kind].form.can_fail_to_parse:
        details["reference_parse_rate"] = sum(bool(score.reference.parses) for score in found) / n
        details["candidate_parse_rate"] = sum(bool(score.candidate.parses) for score in found) / n
    lines = [score.right_line_shares for score in found if score.right_line_shares is not None]
    if lines:
        details["reference_right_lines"] = math.fsum(one for one, _ in lines) / n
        details["candidate_right_lines"] = math.fsum(other for _, other in lines) / n
    return details
