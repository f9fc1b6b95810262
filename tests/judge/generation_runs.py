"""Runs of the free-running level with chosen outputs, as the table that the judge reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import ids_text
from kvassay.core.records import GENERATION_COLUMNS, ITEM_COLUMNS, TOKEN_COLUMNS, Role, Verdicts
from kvassay.judge import judge
from tests.judge import runs
from tests.judge.runs import CANARY, REFERENCE, ArmRun, table

PROMPTS, PROMPT_TOKENS, TOKENS, END = 24, 96, 32, 0

Rows = dict[str, list[Any]]
Change = Callable[[int, list[int]], list[int]]
"""From a prompt's number and the reference's output to the candidate's."""


def contract(clauses: str = "", **fields: Any) -> Contract:
    """At most 0.3 of the prompts may diverge, unless `clauses` says otherwise."""
    given = clauses or "[free_running.diverged]\nmax_rate = 0.3\n"
    return runs.contract(
        f"[free_running]\nprompts = {PROMPTS}\nprompt_tokens = {PROMPT_TOKENS}\ngenerated_tokens = {TOKENS}\n"
        f"lengths = [8, 16]\n{given}",
        **fields,
    )


def reference_ids(prompt: int) -> list[int]:
    return np.random.default_rng([prompt, 1]).integers(1, 1000, TOKENS).tolist()


def diverging(share: float, at: int = 4) -> Change:
    """That share of the prompts differs from token `at` on."""
    return lambda prompt, ids: [*ids[:at], *(token + 1000 for token in ids[at:])] if prompt < share * PROMPTS else ids


def equal(prompt: int, ids: list[int]) -> list[int]:
    return ids


def rows(
    run: ArmRun,
    change: Change = equal,
    prompts: int = PROMPTS,
    reference: Callable[[int], list[int]] = reference_ids,
    slices: Sequence[str] = ("all",),
) -> Rows:
    columns: Rows = {name: [] for name in GENERATION_COLUMNS}
    exact = run.kv_format.is_exact
    for prompt in range(prompts):
        given = reference(prompt)
        found = change(prompt, given)
        queries = len(found) - 1
        columns["arm"].append(run.name)
        columns["slice"].append(slices[prompt % len(slices)])
        columns["prompt"].append(f"text-{prompt:02}")
        columns["prompt_ids"].append(ids_text(np.random.default_rng(prompt).integers(1, 1000, PROMPT_TOKENS).tolist()))
        columns["end_ids"].append(str(END))
        columns["reference_ids"].append(ids_text(given))
        columns["candidate_ids"].append(ids_text(found))
        columns["reading_queries"].append(0 if exact else queries)
        columns["stored_reads"].append(0.0 if exact else float(PROMPT_TOKENS - run.kv_format.recent))
        columns["logit_drift"].append(0.0 if exact else 0.01)
    return columns


def arms(candidate: Change = equal, canary: Change | None = None, **options: Any) -> dict[str, tuple[ArmRun, Rows]]:
    """A candidate, a canary that diverges everywhere, and the reference again."""
    made = {
        "candidate": (ArmRun("int8-token-head"), candidate),
        "canary": (ArmRun(CANARY, Role.CANARY), canary or diverging(1.0)),
        "again": (ArmRun(REFERENCE, Role.REFERENCE_AGAIN, "f32"), equal),
    }
    return {name: (run, rows(run, change, **options)) for name, (run, change) in made.items()}


def judged(of: Contract, found: dict[str, tuple[ArmRun, Rows]]) -> Verdicts:
    return judge(
        of,
        [run.record() for run, _ in found.values()],
        {run.name: run.ledger() for run, _ in found.values()},
        table([], TOKEN_COLUMNS),
        table([], ITEM_COLUMNS),
        generations=table([columns for _, columns in found.values()], GENERATION_COLUMNS),
    )
