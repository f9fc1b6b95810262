"""Did the quantized store take part in written answers? Controls `engaged.task.NAME` and `drift.task.NAME`.

The rules are those of free-running generation (`judge.generation_engagement`), by task and by slice of a task. The
question reads the stored context too, so a logit may have moved before the first token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvassay.core.kv_format import KVFormat
from kvassay.core.records import Arm
from kvassay.judge.answer_rows import AnswerRow, in_slice
from kvassay.judge.engagement import Engagement
from kvassay.judge.generation_engagement import outputs_fault, with_outputs

AnswerSlices = Mapping[str, tuple[Sequence[AnswerRow], Sequence[str]]]
"""By task: an arm's rows, and the labels of their slices."""


def with_answers(found: Engagement, arm: Arm, kv_format: KVFormat, answers: AnswerSlices) -> Engagement:
    """What the other levels showed, and what the arm's written answers show."""
    if kv_format.is_exact:
        return found
    for task, (rows, labels) in answers.items():
        level = f"task.{task}"
        found = with_outputs(found, level, arm, kv_format, [row.output for row in rows])
        if level in found.faults:
            continue
        parts = {label: [row.output for row in in_slice(rows, label)] for label in labels}
        faults = {
            (level, label): fault
            for label, part in parts.items()
            if part and (fault := outputs_fault(arm, kv_format, part))
        }
        found = found._replace(slice_faults={**found.slice_faults, **faults})
    return found
