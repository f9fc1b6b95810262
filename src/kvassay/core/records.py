"""What a run leaves behind: outcomes, verdicts and the columns of the row tables.

Absent is never zero: a value that was not measured is null, and a clause without rows is `not_measured`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class Outcome(StrEnum):
    """What is known of a clause or a format after a run."""

    MET = "met"
    """The whole confidence bound lies inside the allowed degradation."""
    BREACHED = "breached"
    """The whole confidence bound lies outside the allowed degradation."""
    INCONCLUSIVE = "inconclusive"
    """The evidence is sound and too weak to say which."""
    NOT_MEASURED = "not_measured"
    """No rows exist for it."""
    INVALID_EVIDENCE = "invalid_evidence"
    """Rows exist and may not be used: a control failed."""


class ExitCode(IntEnum):
    MET = 0
    BREACHED = 1
    USAGE = 2
    INCONCLUSIVE = 3


class Role(StrEnum):
    """Why an arm was run."""

    CANDIDATE = "candidate"
    CANARY = "canary"
    """Known bad; must be BREACHED, or the contract cannot see damage."""
    REFERENCE_AGAIN = "reference_again"
    """The full-precision cache through the same path (A/A); must not be BREACHED."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(_Record):
    """One format that was run. `name` is the key of the rows' `arm` column."""

    name: str
    role: Role
    format_digest: str
    format: dict[str, Any]
    scale_source: str
    """Never empty: `dynamic`, `unit`, `none` or `calibrated(POLICY, n=... tokens)`."""
    clipped_values: int
    """Finite values that saturated when they were encoded."""
    encoded_values: int


class ClauseVerdict(_Record):
    clause: str
    """Dotted name, e.g. `fidelity.kl_mean`."""
    slice: str
    """`all`, or the slice's name."""
    outcome: Outcome
    reason: str
    """One sentence with the figures that decided."""
    unit: str
    estimate: float | None
    lower: float | None
    """One-sided lower bound at 1 − alpha."""
    upper: float | None
    """One-sided upper bound at 1 − alpha."""
    limit: float
    """The bound of the contract, in the clause's unit."""
    n: int
    n_unit: str
    """`documents`, `contexts`, `prompts` or `formats`."""
    method: str
    details: dict[str, float | int | str | bool | None] = {}


class ControlResult(_Record):
    name: str
    """`canary`, `aa`, `engaged`, `drift`, `reference_floor.recall`; with a level and a slice where it is about that
    slice alone: `canary.fidelity.language=ja`."""
    passed: bool | None
    """None where the control could not be run."""
    reason: str


class FormatVerdict(_Record):
    arm: str
    role: Role
    format_digest: str
    outcome: Outcome
    reason: str
    clauses: tuple[ClauseVerdict, ...]
    controls: tuple[ControlResult, ...]


class Verdicts(_Record):
    """The whole judgement; a pure function of contract, arms, ledgers and rows."""

    schema_version: str = "kvassay.verdicts/1"
    contract_sha256: str
    outcome: Outcome
    exit_code: int
    reason: str
    controls: tuple[ControlResult, ...]
    """Controls of the run as a whole (canary, A/A, reference floor)."""
    formats: tuple[FormatVerdict, ...]


TOKEN_COLUMNS: dict[str, str] = {
    "arm": "string",
    "slice": "string",
    "document": "string",
    "position": "int32",
    "token_id": "int32",
    "kl_nats": "float64",
    "reverse_kl_nats": "float64",
    "nll_reference_nats": "float64",
    "nll_candidate_nats": "float64",
    "reference_top1_nats": "float64",
    "top1_agrees": "bool",
    "top10_overlap": "float64",
    "stored_reads": "int32",
}
"""One row a decode position. `position` is the index of the query token, `token_id` the true next token,
`reference_top1_nats` minus the logarithm of the probability of the reference's most likely token, `top10_overlap` the
share of the reference's ten most likely tokens that are among the candidate's ten, `stored_reads` how many older
tokens this query read from stored codes."""

ITEM_COLUMNS: dict[str, str] = {
    "arm": "string",
    "task": "string",
    "slice": "string",
    "context": "string",
    "context_tokens": "int32",
    "question": "string",
    "expected": "string",
    "reference_answer": "string",
    "candidate_answer": "string",
    "reference_correct": "bool",
    "candidate_correct": "bool",
    "stored_reads": "int32",
}
"""One row a task item. `context` is the unit of independence."""

TENSOR_COLUMNS: dict[str, str] = {
    "arm": "string",
    "document": "string",
    "layer": "int32",
    "head": "int32",
    "substituted": "string",
    "reconstruction_rmse": "float64",
    "reconstruction_max_abs": "float64",
    "reconstruction_relative": "float64",
    "score_rmse": "float64",
    "score_max_abs": "float64",
    "score_relative": "float64",
    "weight_rmse": "float64",
    "weight_max_abs": "float64",
    "weight_relative": "float64",
    "output_rmse": "float64",
    "output_max_abs": "float64",
    "output_relative": "float64",
    "stored_reads": "int32",
}
"""One row a cell: a layer and KV head of a captured document, with `keys`, `values` or `both` sides replaced by what
a cache of the format hands to each query (`substituted`). `_relative` is the root of error energy over signal energy.
With both sides replaced, the reconstruction figures are those of the worse side. `stored_reads` sums, over the measured
queries, the older tokens that each read from codes."""

GENERATION_COLUMNS: dict[str, str] = {
    "arm": "string",
    "slice": "string",
    "prompt": "string",
    "prompt_ids": "string",
    "end_ids": "string",
    "reference_ids": "string",
    "candidate_ids": "string",
    "reading_queries": "int32",
    "stored_reads": "float64",
    "logit_drift": "float64",
}
"""One row a prompt of the free-running level; it shares no row and no column of figures with the teacher-forced one.
Ids are texts of `core.free_running_rule.ids_text`: of the prompt, of the tokens that end an output, and of both
outputs. Of the candidate's queries after the prompt, `reading_queries` read stored codes, `stored_reads` older tokens a
query on average. `logit_drift` is the largest change of the highest logit while both outputs had the same history,
and null where no query after the prompt had it."""

ANSWER_COLUMNS: dict[str, str] = {
    "arm": "string",
    "task": "string",
    "slice": "string",
    "context": "string",
    "context_tokens": "int32",
    "prompt_ids": "string",
    "end_ids": "string",
    "reference_ids": "string",
    "candidate_ids": "string",
    "reference_text": "string",
    "candidate_text": "string",
    "reading_queries": "int32",
    "stored_reads": "float64",
    "logit_drift": "float64",
}
"""One row an item of a task whose answer the model writes by itself. `context` is the unit of independence and names
the item; the first `context_tokens` of the prompt stand before the question. Texts are those of the outputs, without
the token that ended them, at most `core.tasks.answers.MAX_ANSWER_CHARACTERS` of them. Other columns are those of
`GENERATION_COLUMNS`; the question read the stored context, so `logit_drift` counts the first token too."""
