"""The recall task, by lines: whole texts, split where tokens allow, independent and the same everywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from kvassay.core.tasks.settings import DEPTHS, TaskSettings
from kvassay.core.tasks.words import NOUNS
from kvassay.errors import WorkloadError
from kvassay.workloads.tasks.items import TaskItem, task_items

from .task_tokenizers import BOS, GREEDY, PLAIN, Characters

HEADING = "A list of words and their numbers.\n\n"


def recall_items(tokenizer: Any, *, items: int, context_lines: int, seed: int) -> list[TaskItem]:
    settings = TaskSettings("recall", context_lines=context_lines, depths=DEPTHS)
    return task_items(tokenizer, "recall", settings, seed, range(items))


@pytest.mark.parametrize("tokenizer", [PLAIN, BOS, GREEDY], ids=["plain", "bos", "greedy"])
def test_the_parts_join_to_the_ids_of_the_whole_text(tokenizer: PreTrainedTokenizerFast) -> None:
    for item in recall_items(tokenizer, items=20, context_lines=9, seed=4):
        text = tokenizer.decode(item.token_ids, skip_special_tokens=True)
        assert tuple(tokenizer(text).input_ids) == item.token_ids
        assert text.startswith(HEADING)
        assert text.endswith(f"\nThe list again:\n{item.question}: {item.expected}")
        assert text.count(f"\n{item.question}: {item.expected}") == 2
        assert item.expected in tokenizer.decode(item.answer_ids)
        assert item.expected not in tokenizer.decode(item.question_ids)


def test_a_token_that_straddles_belongs_to_the_later_part() -> None:
    (item,) = recall_items(GREEDY, items=1, context_lines=5, seed=4)
    assert GREEDY.decode(item.question_ids).startswith("\n\n")
    assert GREEDY.decode(item.answer_ids[0]).startswith(" ")
    assert len(GREEDY.decode(item.answer_ids[0])) > 1


def test_lists_are_unambiguous() -> None:
    for item in recall_items(PLAIN, items=30, context_lines=24, seed=0):
        lines = PLAIN.decode(item.prompt_ids).removeprefix(HEADING).splitlines()
        words, numbers = zip(*(line.split(": ") for line in lines), strict=True)
        assert len(lines) == len(set(words)) == len(set(numbers)) == 24
        assert set(words) <= set(NOUNS)
        assert all(1000 <= int(number) <= 9999 for number in numbers)
        assert words.index(item.question) == numbers.index(item.expected)
        assert item.slice == f"depth={DEPTHS[words.index(item.question) // 8]}"


def test_items_are_independent_and_cover_the_list() -> None:
    items = recall_items(PLAIN, items=300, context_lines=24, seed=1)
    assert len({item.id for item in items}) == len({item.prompt_ids for item in items}) == 300
    assert set(Counter(item.slice for item in items).values()) == {100}
    assert len({item.question for item in items}) > 180
    assert max(Counter(item.expected[0] for item in items).values()) < 60


def test_seed_and_number_of_items() -> None:
    """The first items stay the same when more are asked for, and another seed shares none of them."""
    few = recall_items(PLAIN, items=5, context_lines=12, seed=1)
    assert recall_items(PLAIN, items=9, context_lines=12, seed=1)[:5] == few
    other = recall_items(PLAIN, items=5, context_lines=12, seed=2)
    assert {item.prompt_ids for item in few}.isdisjoint(item.prompt_ids for item in other)


@pytest.mark.parametrize("lines", [len(NOUNS) + 1, 1000])
def test_impossible_lengths(lines: int) -> None:
    with pytest.raises(WorkloadError, match=f"context_lines is {lines}; expected 2 to {len(NOUNS)}"):
        recall_items(PLAIN, items=1, context_lines=lines, seed=0)


def test_the_longest_list() -> None:
    (item,) = recall_items(Characters(), items=1, context_lines=len(NOUNS), seed=0)
    assert item.prompt_ids.count(ord(":")) == len(NOUNS)


@pytest.mark.model
def test_smollm2_first_tokens_differ(smollm2_tokenizer: Any) -> None:
    item = recall_items(smollm2_tokenizer, items=1, context_lines=24, seed=7)[0]
    lines = smollm2_tokenizer.decode(item.prompt_ids).removeprefix(HEADING).splitlines()
    assert len({smollm2_tokenizer(line).input_ids[0] for line in lines}) == 24
    assert 190 < len(item.prompt_ids) < 230
    assert len(item.answer_ids) == 5
