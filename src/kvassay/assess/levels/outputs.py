"""The columns that rows of generated text share: ids of prompt and outputs, and what the queries read."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from kvassay.assess.levels.base import Columns
from kvassay.core.free_running_rule import ids_text
from kvassay.engines.transformers.generating import Generation, Output, logit_drift


def output_columns(
    prompts: Sequence[Sequence[int]],
    end_ids: Collection[int],
    reference: Generation,
    found: Generation,
    first_step: int,
) -> Columns:
    """`first_step` is the first whose query read the store; see `logit_drift`."""
    pairs = list(zip(reference.outputs, found.outputs, strict=True))
    return {
        "prompt_ids": [ids_text(prompt) for prompt in prompts],
        "end_ids": [ids_text(sorted(end_ids))] * len(prompts),
        "reference_ids": [ids_text(output.token_ids) for output in reference.outputs],
        "candidate_ids": [ids_text(output.token_ids) for output in found.outputs],
        "reading_queries": [sum(reads > 0 for reads in output.stored_reads) for output in found.outputs],
        "stored_reads": [_mean_reads(output) for output in found.outputs],
        "logit_drift": [logit_drift(*both, first_step) for both in pairs],
    }


def _mean_reads(output: Output) -> float | None:
    """None where no query followed the prompt."""
    return math.fsum(output.stored_reads) / len(output.stored_reads) if output.stored_reads else None
