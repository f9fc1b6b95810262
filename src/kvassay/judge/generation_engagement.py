"""Did the quantized store take part in free-running generation? Controls `engaged` and `drift` of that level.

As in `judge.engagement`, with the queries after the prompt: at least half of them must have read a stored token, and
together at least a tenth of what the format should store. The prompt's own pass reads nothing back, so a generation of
one token shows nothing. Drift: while an output had the reference's history, some logit must have moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvassay.core.kv_format import KVFormat
from kvassay.core.records import Arm, ControlResult
from kvassay.judge.engagement import LEAST_READ_SHARE, LEAST_READING_SHARE, Engagement, expected_reads
from kvassay.judge.generation_rows import GenerationRow
from kvassay.judge.wording import figure

LEVEL = "free_running"


def with_generations(
    found: Engagement, arm: Arm, kv_format: KVFormat, rows: Sequence[GenerationRow] | None
) -> Engagement:
    """What the other levels showed, and what the arm's generation rows show."""
    return found if kv_format.is_exact or not rows else with_outputs(found, LEVEL, arm, kv_format, rows)


def with_outputs(
    found: Engagement, level: str, arm: Arm, kv_format: KVFormat, rows: Sequence[GenerationRow]
) -> Engagement:
    """The same with one more level of generated text, whose controls are `engaged.LEVEL` and `drift.LEVEL`."""
    fault = _reads_fault(arm, kv_format, rows)
    engaged = ControlResult(name=f"engaged.{level}", passed=fault is None, reason=fault or _seen(level, rows))
    drift = _drift(level, rows, fault)
    if fault is None and drift.passed is False:
        fault = drift.reason
    others = [control for control in found.controls if not control.reason.startswith("not run")]
    faults = {**found.faults, **({level: fault} if fault else {})}
    return found._replace(controls=(*others, engaged, drift), faults=faults)


def outputs_fault(arm: Arm, kv_format: KVFormat, rows: Sequence[GenerationRow]) -> str:
    """Why rows of generated text do not show the store at work; empty if they do."""
    fault = _reads_fault(arm, kv_format, rows)
    drift = _drift("", rows, fault)
    return fault or (drift.reason if drift.passed is False else "")


def _reads_fault(arm: Arm, kv_format: KVFormat, rows: Sequence[GenerationRow]) -> str | None:
    if arm.encoded_values == 0:
        return "no value was encoded: nothing was compressed"
    unknown = sum(row.reading_queries is None or row.stored_reads is None for row in rows)
    if unknown:
        return f"reading_queries or stored_reads is missing for {unknown} of {len(rows)} prompts"
    queries = sum(row.queries for row in rows)
    if not queries:
        return "every output ended with the token that the prompt's own pass predicts: no query read the store"
    total = math.fsum((row.stored_reads or 0.0) * row.queries for row in rows)
    if total == 0:
        return "no query read a token from the quantized store"
    reading = sum(row.reading_queries or 0 for row in rows) / queries
    if reading < LEAST_READING_SHARE:
        return f"only {reading:.1%} of {queries} queries read a stored token; at least half must"
    older = [len(row.prompt_ids) + step for row in rows for step in range(row.queries)]
    expected = int(expected_reads(kv_format, np.array(older, dtype=np.int64)).sum())
    if total < LEAST_READ_SHARE * expected:
        return (
            f"queries read {figure(total)} stored tokens where the format stores {expected}; "
            "at least a tenth must be read"
        )
    return None


def _seen(level: str, rows: Sequence[GenerationRow]) -> str:
    queries = sum(row.queries for row in rows)
    total = math.fsum((row.stored_reads or 0.0) * row.queries for row in rows)
    return f"{level}: a query read {figure(total / queries)} stored tokens on average over {queries} queries"


def _drift(level: str, rows: Sequence[GenerationRow], not_engaged: str | None) -> ControlResult:
    name = f"drift.{level}"
    if not_engaged is not None:
        return ControlResult(name=name, passed=None, reason=f"does not apply: {not_engaged}")
    known = [row.logit_drift for row in rows if row.logit_drift is not None]
    if not known:
        reason = "logit_drift is missing for all prompts: that the store moved a logit is not shown"
        return ControlResult(name=name, passed=False, reason=reason)
    moved = sum(drift != 0 for drift in known)
    if not moved:
        reason = f"no logit moved for any of {len(known)} prompts: the quantized store was not used"
        return ControlResult(name=name, passed=False, reason=reason)
    reason = f"logits moved under equal histories for {moved} of {len(known)} prompts"
    return ControlResult(name=name, passed=True, reason=reason)
