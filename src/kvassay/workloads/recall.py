"""The key-value recall task: a list of words with four-digit numbers, then one word whose number is asked for.

Each item has its own list, so items are independent, and one question, so each item is one trial of a paired test. An
item is scored teacher-forced: it is right if every token of the answer is the most likely one given the tokens before
it. The list is the prompt; the question and the answer are decode positions, which read the list from the cache.

The whole item is tokenized as one text and then split, so the ids are those of an undivided text. A token that
straddles a boundary (some tokenizers join two line breaks, or a space and digits) belongs to the later part.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.recall_rule import draw, recall_draw
from kvassay.errors import WorkloadError
from kvassay.workloads.recall_words import WORDS
from kvassay.workloads.tokenizing import Tokenizer, bos_ids, token_ids

HEADING = "A list of words and their numbers.\n\n"
LINE = "{word}: {number}\n"
QUESTION = "\nThe list again:\n{word}:"
ANSWER = " {number}"
# The wording was chosen by the accuracy of the full-precision reference (docs/design/recall.md).


class RecallItem(NamedTuple):
    """`prompt_ids + question_ids + answer_ids` is the whole item; the prompt begins with BOS where texts do."""

    id: str
    slice: str
    prompt_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    question: str
    """The word that is asked for."""
    expected: str
    """Its number."""


def recall_items(tokenizer: Tokenizer, *, items: int, context_lines: int, seed: int) -> list[RecallItem]:
    """`items` independent items with `context_lines` lines each; the same on every machine for a tokenizer and a seed.

    Words of one list differ in their first token where the tokenizer allows it, so that the question is unambiguous
    from its first token on. Raises WorkloadError if there are fewer words than lines.
    """
    if not 2 <= context_lines <= len(WORDS):
        raise WorkloadError(f"context_lines is {context_lines}; expected 2 to {len(WORDS)}")
    first_tokens = {word: _first_token(tokenizer, word) for word in WORDS}
    if len(set(first_tokens.values())) < context_lines:
        first_tokens = {word: index for index, word in enumerate(WORDS)}
    start = bos_ids(tokenizer)
    return [_item(tokenizer, start, first_tokens, context_lines, seed, index) for index in range(items)]


def _item(
    tokenizer: Tokenizer,
    start: tuple[int, ...],
    first_tokens: dict[str, int],
    context_lines: int,
    seed: int,
    index: int,
) -> RecallItem:
    words: list[str] = []
    begun: set[int] = set()
    for word in sorted(WORDS, key=lambda word: draw(f"{seed}/{index}", "word", word)):
        if first_tokens[word] not in begun:
            begun.add(first_tokens[word])
            words.append(word)
        if len(words) == context_lines:
            break
    drawn = recall_draw(seed, index, context_lines)
    word, number = words[drawn.asked], drawn.expected
    prompt = HEADING + "".join(
        LINE.format(word=word, number=number) for word, number in zip(words, drawn.numbers, strict=True)
    )
    question = prompt + QUESTION.format(word=word)
    whole = token_ids(tokenizer, question + ANSWER.format(number=number))
    question_begins = _shared_length(token_ids(tokenizer, prompt), whole)
    answer_begins = _shared_length(token_ids(tokenizer, question), whole)
    return RecallItem(
        id=drawn.id,
        slice=drawn.slice,
        prompt_ids=start + whole[:question_begins],
        question_ids=whole[question_begins:answer_begins],
        answer_ids=whole[answer_begins:],
        question=word,
        expected=number,
    )


def _first_token(tokenizer: Tokenizer, word: str) -> int:
    """The first token of `word` at the beginning of a line."""
    line = token_ids(tokenizer, f"\n{word}:")
    return line[min(_shared_length(token_ids(tokenizer, "\n"), line), len(line) - 1)]


def _shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    for index, pair in enumerate(zip(first, second, strict=False)):
        if pair[0] != pair[1]:
            return index
    return min(len(first), len(second))
