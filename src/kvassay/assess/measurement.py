"""Measuring: every document and item under every arm, row by row into a sink."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations, DocumentPasses, TokenRows, answers, run_document, token_rows
from kvassay.assess.progress import Progress
from kvassay.assess.workload import item_ids
from kvassay.core.recall_rule import TASK, is_right
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.decode_view import EncodeCounts
from kvassay.workloads.excerpts import TokenDocument
from kvassay.workloads.recall import RecallItem

Columns = dict[str, Any]
RowSink = Callable[[Columns], None]
DocumentHook = Callable[[TokenDocument, DocumentPasses, list[TokenRows]], None]


class Subject(NamedTuple):
    """What is measured and how: fixed for a run."""

    scorer: DecodeScorer
    tokenizer: Any
    arms: tuple[PlannedArm, ...]
    calibrations: Calibrations
    reference_kv: str


class Tally:
    """Encoded and saturated values by arm."""

    def __init__(self) -> None:
        self.encoded: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()

    def add(self, arm: str, counts: EncodeCounts) -> None:
        self.encoded[arm] += counts.encoded_values
        self.clipped[arm] += counts.clipped_values


def measure_documents(
    subject: Subject,
    documents: Sequence[TokenDocument],
    prompt_tokens: int,
    sink: RowSink,
    tally: Tally,
    progress: Progress,
    hook: DocumentHook | None = None,
) -> float:
    """Append token rows of all documents; returns the seconds that it took."""
    began = time.monotonic()
    for document in documents:
        passes = run_document(
            subject.scorer,
            document.token_ids,
            prompt_tokens,
            subject.arms,
            subject.calibrations,
            subject.reference_kv,
        )
        rows = token_rows(subject.scorer, passes, document.id, document.slice)
        for row in rows:
            sink(row.columns)
            tally.add(row.arm, row.counts)
        if hook is not None:
            hook(document, passes, rows)
        progress.step()
    return time.monotonic() - began


def measure_items(
    subject: Subject, items: Sequence[RecallItem], sink: RowSink, tally: Tally, progress: Progress
) -> float:
    """Append rows of all recall items; returns the seconds that it took."""
    began = time.monotonic()
    for item in items:
        prompt_tokens = len(item.prompt_ids)
        passes = run_document(
            subject.scorer, item_ids(item), prompt_tokens, subject.arms, subject.calibrations, subject.reference_kv
        )
        expected = list(item.answer_ids)
        reference, found = answers(subject.scorer, passes, len(expected))
        for answer, run in zip(found, passes.arms, strict=True):
            tally.add(answer.arm, run.candidate.counts)
        count = len(found)
        true_answer = subject.tokenizer.decode(expected)
        reference_answer = subject.tokenizer.decode(reference)
        candidate_answers = [subject.tokenizer.decode(answer.token_ids) for answer in found]
        sink(
            {
                "arm": [answer.arm for answer in found],
                "task": [TASK] * count,
                "slice": [item.slice] * count,
                "context": [item.id] * count,
                "context_tokens": [prompt_tokens] * count,
                "question": [item.question] * count,
                "expected": [true_answer] * count,
                "reference_answer": [reference_answer] * count,
                "candidate_answer": candidate_answers,
                "reference_correct": [is_right(reference_answer, true_answer)] * count,
                "candidate_correct": [is_right(answer, true_answer) for answer in candidate_answers],
                "stored_reads": [answer.stored_reads for answer in found],
            }
        )
        progress.step()
    return time.monotonic() - began
