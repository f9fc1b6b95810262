"""Runs of written answers with chosen texts, as the table that the judge reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kvassay.core.contract import Contract
from kvassay.core.free_running_rule import ids_text
from kvassay.core.records import ANSWER_COLUMNS, ITEM_COLUMNS, TOKEN_COLUMNS, Role, Verdicts
from kvassay.core.slices import ALL, slice_cell
from kvassay.core.tasks.kinds import TaskDraw
from kvassay.judge import judge
from tests.judge import runs
from tests.judge.runs import CANARY, REFERENCE, ArmRun, table

NAME, ITEMS, END, QUESTION_TOKENS = "int8-token-head", 60, 0, 12

Rows = dict[str, list[Any]]
Writes = Callable[[int, TaskDraw], str]
"""From an item's place and what it asks to what is written."""
item = cache(runs.item)
"""Every arm asks it again."""
Arms = dict[str, tuple[ArmRun, Rows]]


def contract(kind: str = "json", extra: str = "", **fields: Any) -> Contract:
    """One written task, `probe`, whose accuracy may fall by 10 points."""
    return runs.contract(
        f'[task.probe]\nkind = "{kind}"\nanswer = "written"\nmargin = 0.1\nitems = {ITEMS}\n{extra}', **fields
    )


def right(place: int, draw: TaskDraw) -> str:
    return draw.script.answer


def failing(share: float, text: str, rest: Writes = right) -> Writes:
    """Writes `text` for that share of the items."""
    return lambda place, draw: text if place < share * ITEMS else rest(place, draw)


def ids_of(text: str) -> list[int]:
    """A tokenizer of characters; its end token is not among them."""
    return [ord(character) + 1 for character in text]


def rows(of: Contract, run: ArmRun, writes: Writes, reference: Writes = right, task: str = "probe") -> Rows:
    columns: Rows = {name: [] for name in ANSWER_COLUMNS}
    exact = run.kv_format.is_exact
    for place in range(of.task[task].items):
        draw = item(place, task, of.task[task].settings)
        context = draw.context_tokens - 100 if draw.context_tokens else 96
        before, after = reference(place, draw), writes(place, draw)
        prompt = np.random.default_rng([place, *task.encode()]).integers(1, 1000, context + QUESTION_TOKENS).tolist()
        queries = len(after)
        values = (
            run.name,
            task,
            slice_cell(draw.labels) or ALL,
            draw.id,
            context,
            ids_text(prompt),
            str(END),
            ids_text([*ids_of(before), END]),
            ids_text([*ids_of(after), END]),
            before,
            after,
            0 if exact else queries,
            0.0 if exact else float(len(prompt) - run.kv_format.recent),
            0.0 if exact else 0.01,
        )
        for name, value in zip(ANSWER_COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


def arms(of: Contract, candidate: Writes = right, canary: Writes | None = None, reference: Writes = right) -> Arms:
    """A candidate, a canary that writes nothing of use, and the reference again."""
    made = {
        "candidate": (ArmRun(NAME), candidate),
        "canary": (ArmRun(CANARY, Role.CANARY), canary or failing(1.0, "?\n")),
        "again": (ArmRun(REFERENCE, Role.REFERENCE_AGAIN, "f32"), reference),
    }
    return {name: (run, rows(of, run, writes, reference)) for name, (run, writes) in made.items()}


def judged(of: Contract, found: Arms) -> Verdicts:
    return judge(
        of,
        [run.record() for run, _ in found.values()],
        {run.name: run.ledger() for run, _ in found.values()},
        table((run.tokens for run, _ in found.values()), TOKEN_COLUMNS),
        table([], ITEM_COLUMNS),
        answers=table([columns for _, columns in found.values()], ANSWER_COLUMNS),
    )
