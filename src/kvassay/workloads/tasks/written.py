"""Items whose answers the model writes by itself: the tokens of context and question, and how long an answer may be.

The text is that of `items`, cut before the answer and then tokenized, as a user would send it: where a tokenizer joins
the question's end with the answer's beginning, the model must not be given that join.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.slices import ALL, slice_cell
from kvassay.core.tasks.kinds import TaskDraw, task_draw
from kvassay.workloads.tasks.items import check_context_share, context_text, noun_tokens, shared_length
from kvassay.workloads.tokenizing import Tokenizer, bos_ids, token_ids


class WrittenItem(NamedTuple):
    """`context_ids + question_ids` is the prompt, of which the context is what is read back from the cache."""

    id: str
    task: str
    slice: str
    """Labels, joined as in a row."""
    context_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """Of the true answer, behind the question's text."""
    expected: str
    most_tokens: int
    """After which an answer is cut."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.context_ids + self.question_ids

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt and the true answer, as far as it may be written."""
        return self.prompt_ids + self.answer_ids[: self.most_tokens]


def written_items(
    tokenizer: Tokenizer, name: str, bound: TaskBound, seed: int, indices: Iterable[int]
) -> list[WrittenItem]:
    """The task's items at these places of its sequence; raises WorkloadError as `task_items` does."""
    first_tokens = noun_tokens(tokenizer)
    start = bos_ids(tokenizer)
    found: list[WrittenItem] = []
    for index in indices:
        draw = task_draw(name, bound.settings, seed, index)
        context = context_text(tokenizer, start, first_tokens, name, bound.settings, draw)
        found.append(_item(tokenizer, start, name, bound, draw, context))
    return found


def _item(
    tokenizer: Tokenizer, start: tuple[int, ...], name: str, bound: TaskBound, draw: TaskDraw, context: str
) -> WrittenItem:
    question = context + draw.script.ask
    asked, whole = token_ids(tokenizer, question), token_ids(tokenizer, question + draw.script.answer)
    question_begins = shared_length(token_ids(tokenizer, context), asked)
    answer_begins = shared_length(asked, whole)
    item = WrittenItem(
        id=draw.id,
        task=name,
        slice=slice_cell(draw.labels) or ALL,
        context_ids=start + asked[:question_begins],
        question_ids=asked[question_begins:],
        answer_ids=whole[answer_begins:],
        expected=draw.expected,
        most_tokens=bound.most_tokens(draw.expected),
    )
    check_context_share(name, draw, len(item.context_ids), len(item.token_ids))
    return item
