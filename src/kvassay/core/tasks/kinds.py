"""The kinds of tasks: how each writes an item, what a contract may set of it, and how a written answer is scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from kvassay.core.tasks.answers import (
    JSON_OBJECT,
    LINE,
    LINES,
    PREFIX,
    SENTENCE,
    TOOL_CALL,
    AnswerForm,
    GeneratedScore,
)
from kvassay.core.tasks.chains import arithmetic, variable_tracking
from kvassay.core.tasks.common_words import common_words
from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.lists import recall
from kvassay.core.tasks.long_generation import counting, table_copy
from kvassay.core.tasks.needles import multi_key, multi_value, needle, passkey, rare_copy
from kvassay.core.tasks.records import json_record, tool_call
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import DEPTHS, TaskSettings, cell_labels, cell_of

TaskKind = Literal[
    "recall",
    "passkey",
    "needle",
    "multi-key",
    "multi-value",
    "variable-tracking",
    "common-words",
    "rare-copy",
    "json",
    "tool-call",
    "arithmetic",
    "counting",
    "table-copy",
]
KIND_NAMES: tuple[TaskKind, ...] = get_args(TaskKind)

NEEDLE_KINDS = frozenset({"passkey", "needle"})
"""One striking sentence in a text that does not matter: these see gross damage only, so they cannot stand alone."""


class Kind(NamedTuple):
    script: Callable[[Draws, TaskSettings, Facts], Script]
    defaults: Mapping[str, Any]
    """The fields of `TaskSettings` that a contract may set, with their defaults. Others are refused."""
    form: AnswerForm
    """How an answer is read that a model wrote by itself."""
    written_only: bool = False
    """Whether teacher forcing would give the answer away."""

    def scored(self, expected: str, answer: str) -> GeneratedScore:
        """The score of an answer that a model wrote by itself."""
        return self.form.scored(expected, answer)


_TOKENS = {"context_tokens": (512,)}
_DEPTHS = {"depths": DEPTHS}

KINDS: dict[str, Kind] = {
    "recall": Kind(recall, {"context_lines": 24, "context_tokens": (), **_DEPTHS}, PREFIX),
    "passkey": Kind(passkey, {**_TOKENS, **_DEPTHS, "languages": ("en",)}, PREFIX),
    "needle": Kind(needle, {**_TOKENS, **_DEPTHS}, PREFIX),
    "multi-key": Kind(multi_key, {**_TOKENS, **_DEPTHS, "keys": 4}, PREFIX),
    "multi-value": Kind(multi_value, {**_TOKENS, "values": 2}, PREFIX),
    "variable-tracking": Kind(variable_tracking, {**_TOKENS, "hops": (1,)}, LINE),
    "common-words": Kind(common_words, _TOKENS, PREFIX),
    "rare-copy": Kind(rare_copy, {**_TOKENS, **_DEPTHS, "rarities": ("common", "rare")}, SENTENCE),
    "json": Kind(json_record, {**_TOKENS, **_DEPTHS}, JSON_OBJECT),
    "tool-call": Kind(tool_call, {**_TOKENS, **_DEPTHS}, TOOL_CALL),
    "arithmetic": Kind(arithmetic, {**_TOKENS, **_DEPTHS, "steps": (1,)}, LINE),
    "counting": Kind(counting, {"lines": (16,)}, LINES, written_only=True),
    "table-copy": Kind(table_copy, {"lines": (16,)}, LINES, written_only=True),
}

TEACHER_FORCED_KINDS: tuple[str, ...] = tuple(name for name, kind in KINDS.items() if not kind.written_only)


class TaskDraw(NamedTuple):
    """One item as far as it needs no tokenizer."""

    id: str
    """`NAME/SEED/N`."""
    labels: tuple[str, ...]
    context_tokens: int | None
    """What the whole item may take; None where its length is given in lines."""
    script: Script
    draws: Draws

    @property
    def question(self) -> str:
        return self.script.question

    @property
    def expected(self) -> str:
        return self.script.expected


def task_draw(name: str, settings: TaskSettings, seed: int, index: int) -> TaskDraw:
    """Item `index` of a task's sequence; the same on every machine and for every model.

    The task's name is part of what is drawn, so two tasks of one kind share no item.
    """
    cell = cell_of(settings, index)
    facts = dict(cell)
    draws = Draws(f"{name}/{settings.kind}/{seed}/{index}")
    return TaskDraw(
        id=f"{name}/{seed}/{index}",
        labels=cell_labels(cell),
        context_tokens=int(facts["tokens"]) if "tokens" in facts else None,
        script=KINDS[settings.kind].script(draws, settings, facts),
        draws=draws,
    )


def is_right(answer: str, expected: str) -> bool:
    """Whether a teacher-forced answer counts: the most likely tokens at its positions are the true answer's text."""
    return answer == expected


def length_fits(context_tokens: float, asked: int) -> bool:
    """Whether a row's context has the length of its slice: more than half of the item's tokens, and not all of them.

    How near a text comes to the asked length depends on the tokenizer, whose longest unit of filler may be left out.
    """
    return asked < 2 * context_tokens < 2 * asked
