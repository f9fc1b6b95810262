"""Items of a task as token ids: filler by the unit until the whole item has the wanted length.

The whole item is tokenized as one text and then split, so the ids are those of an undivided text. A token that
straddles a boundary (some tokenizers join two line breaks, or a space and digits) belongs to the later part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from kvassay.core.slices import ALL, slice_cell
from kvassay.core.tasks.kinds import TaskDraw, length_fits, task_draw
from kvassay.core.tasks.script import Script
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS
from kvassay.errors import WorkloadError
from kvassay.workloads.tokenizing import Tokenizer, bos_ids, token_ids


class TaskItem(NamedTuple):
    """`prompt_ids + question_ids + answer_ids` is the whole item; the prompt begins with BOS where texts do."""

    id: str
    task: str
    slice: str
    """Labels, joined as in a row."""
    prompt_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    question: str
    expected: str

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.question_ids + self.answer_ids


def task_items(
    tokenizer: Tokenizer, name: str, settings: TaskSettings, seed: int, indices: Iterable[int]
) -> list[TaskItem]:
    """Independent items, the same on every machine for a tokenizer and a seed.

    With `context_tokens` an item has as many units of filler as fit. Raises WorkloadError where the fixed parts alone
    take half of that, or where a list would need more keys than there are.
    """
    first_tokens = noun_tokens(tokenizer)
    start = bos_ids(tokenizer)
    return [
        _item(tokenizer, start, first_tokens, name, settings, task_draw(name, settings, seed, index))
        for index in indices
    ]


def noun_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The first token of each noun at the beginning of a line."""
    return {noun: _first_token(tokenizer, noun) for noun in NOUNS}


def context_text(
    tokenizer: Tokenizer,
    start: tuple[int, ...],
    first_tokens: dict[str, int],
    name: str,
    settings: TaskSettings,
    draw: TaskDraw,
) -> str:
    """All of an item's text before what asks. `start` are the tokens before the text, `first_tokens` those of nouns."""
    if settings.lines:
        return _prompt(draw.script, ())  # as long as what is to be written makes it
    nouns = _ordered_nouns(draw, first_tokens)
    if draw.context_tokens is None:
        assert settings.context_lines is not None, "a task without context_tokens has context_lines"
        units = _list_units(draw, nouns, settings.context_lines)
    else:
        units = _fitted_units(tokenizer, name, draw, nouns, draw.context_tokens - len(start))
    return _prompt(draw.script, units)


def _item(
    tokenizer: Tokenizer,
    start: tuple[int, ...],
    first_tokens: dict[str, int],
    name: str,
    settings: TaskSettings,
    draw: TaskDraw,
) -> TaskItem:
    prompt = context_text(tokenizer, start, first_tokens, name, settings, draw)
    question = prompt + draw.script.ask
    whole = token_ids(tokenizer, question + draw.script.answer)
    question_begins = shared_length(token_ids(tokenizer, prompt), whole)
    answer_begins = shared_length(token_ids(tokenizer, question), whole)
    item = TaskItem(
        id=draw.id,
        task=name,
        slice=slice_cell(draw.labels) or ALL,
        prompt_ids=start + whole[:question_begins],
        question_ids=whole[question_begins:answer_begins],
        answer_ids=whole[answer_begins:],
        question=draw.question,
        expected=draw.expected,
    )
    check_context_share(name, draw, len(item.prompt_ids), len(item.token_ids))
    return item


def check_context_share(name: str, draw: TaskDraw, context: int, whole: int) -> None:
    """Raise WorkloadError for an item most of which is question and answer."""
    if draw.context_tokens is not None and not length_fits(context, draw.context_tokens):
        rest = whole - context
        raise WorkloadError(
            f"task {name}: of {draw.context_tokens} context_tokens, {draw.id} leaves {context} to what is "
            f"read back, since question and answer take {rest}; raise context_tokens to {4 * rest} or more"
        )


def _fitted_units(tokenizer: Tokenizer, name: str, draw: TaskDraw, nouns: Sequence[str], budget: int) -> list[str]:
    """The most filler with which the whole item has at most `budget` tokens."""
    script = draw.script
    most = budget // 2
    units = list(islice(script.filler(nouns), most))

    def length(count: int) -> int:
        text = _prompt(script, units[:count]) + script.ask + script.answer
        return len(token_ids(tokenizer, text))

    fixed = length(0)
    if fixed > budget:
        raise WorkloadError(
            f"task {name}: {draw.id} takes {fixed} tokens without any filler, of {draw.context_tokens} context_tokens; "
            f"raise context_tokens to {2 * fixed} or more"
        )
    low, high = 0, len(units)
    while low < high:
        middle = (low + high + 1) // 2
        if length(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    if low == len(units) < most:
        raise WorkloadError(
            f"task {name}: {draw.context_tokens} context_tokens need more than the {len(units)} entries that can be "
            f"told apart; write at most {length(low)}, or a kind whose filler is prose (needle, multi-key)"
        )
    return units[:low]


def _list_units(draw: TaskDraw, nouns: Sequence[str], lines: int) -> list[str]:
    """Filler of a list of so many lines in all."""
    filler = lines - len(draw.script.entries)
    units = list(islice(draw.script.filler(nouns), filler))
    if len(units) < filler:
        raise WorkloadError(f"context_lines is {lines}; expected 2 to {len(NOUNS)}")
    return units


def _prompt(script: Script, units: Sequence[str]) -> str:
    """The heading, and each entry before the unit at its place; entries at one place keep their order."""
    text = [script.heading]
    waiting = sorted(script.entries, key=lambda entry: entry.position)
    for place, unit in enumerate([*units, ""]):
        while waiting and int(waiting[0].position * (len(units) + 1)) <= place:
            text.append(waiting.pop(0).text)
        text.append(unit)
    return "".join(text)


def _ordered_nouns(draw: TaskDraw, first_tokens: dict[str, int]) -> list[str]:
    """All nouns in a drawn order, those first that begin with a token of their own.

    So the keys of a list can mostly be told apart from their first token on, where the tokenizer allows it.
    """
    begun = {first_tokens[draw.question]} if draw.question in first_tokens else set[int]()
    own: list[str] = []
    others: list[str] = []
    for noun in draw.draws.shuffled("nouns", NOUNS):
        (others if first_tokens[noun] in begun else own).append(noun)
        begun.add(first_tokens[noun])
    return own + others


def _first_token(tokenizer: Tokenizer, word: str) -> int:
    line = token_ids(tokenizer, f"\n{word}:")
    return line[min(shared_length(token_ids(tokenizer, "\n"), line), len(line) - 1)]


def shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    for index, pair in enumerate(zip(first, second, strict=False)):
        if pair[0] != pair[1]:
            return index
    return min(len(first), len(second))
