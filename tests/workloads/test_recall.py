"""The recall task: whole texts, split where tokens allow, independent and the same everywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kvassay.core.recall_rule import DEPTHS
from kvassay.errors import WorkloadError
from kvassay.workloads.recall import ANSWER, HEADING, QUESTION, recall_items
from kvassay.workloads.recall_words import WORDS

from ..engines.model_folders import SENTENCES, byte_tokenizer

PLAIN = byte_tokenizer()


def greedy_tokenizer() -> PreTrainedTokenizerFast:
    """Tokens of this one straddle both boundaries: it joins line breaks, and a space with up to three digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n+| ?\d{1,3}|[a-z]+|."), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    numbers = [f"x\n\nThe: {number}" for number in range(1000)]
    trainer = trainers.BpeTrainer(
        vocab_size=2600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*numbers * 3, *SENTENCES], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


GREEDY = greedy_tokenizer()


@pytest.mark.parametrize("tokenizer", [PLAIN, byte_tokenizer(bos=True), GREEDY], ids=["plain", "bos", "greedy"])
def test_the_parts_join_to_the_ids_of_the_whole_text(tokenizer: PreTrainedTokenizerFast) -> None:
    for item in recall_items(tokenizer, items=20, context_lines=9, seed=4):
        ids = item.prompt_ids + item.question_ids + item.answer_ids
        text = tokenizer.decode(ids, skip_special_tokens=True)
        assert tuple(tokenizer(text).input_ids) == ids
        assert text.startswith(HEADING)
        assert text.endswith(QUESTION.format(word=item.question) + ANSWER.format(number=item.expected))
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
        assert set(words) <= set(WORDS)
        assert all(1000 <= int(number) <= 9999 for number in numbers)
        assert words.index(item.question) == numbers.index(item.expected)
        assert item.slice == DEPTHS[words.index(item.question) // 8]


def test_items_are_independent_and_cover_the_list() -> None:
    items = recall_items(PLAIN, items=300, context_lines=24, seed=1)
    assert len({item.id for item in items}) == len({item.prompt_ids for item in items}) == 300
    assert all(70 < count < 130 for count in Counter(item.slice for item in items).values())
    assert len({item.question for item in items}) > 180
    assert max(Counter(item.expected[0] for item in items).values()) < 60


def test_seed_and_number_of_items() -> None:
    """The first items stay the same when more are asked for, and another seed shares none of them."""
    few = recall_items(PLAIN, items=5, context_lines=12, seed=1)
    assert recall_items(PLAIN, items=9, context_lines=12, seed=1)[:5] == few
    other = recall_items(PLAIN, items=5, context_lines=12, seed=2)
    assert {item.prompt_ids for item in few}.isdisjoint(item.prompt_ids for item in other)


class Characters:
    """The least that a tokenizer must be: one token a character."""

    bos_token_id = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


def test_items_are_the_same_on_every_machine() -> None:
    """Evidence of one machine is repeated on another, so a change of the generator must not pass unseen."""
    items = recall_items(Characters(), items=2, context_lines=12, seed=1)
    assert [(item.question, item.expected) for item in items] == [("kettle", "2786"), ("apron", "4288")]
    assert items[0].prompt_ids[:6] == tuple(map(ord, "A list"))


@pytest.mark.parametrize("lines", [-1, 0, 1, len(WORDS) + 1])
def test_impossible_lengths(lines: int) -> None:
    with pytest.raises(WorkloadError, match=f"context_lines is {lines}; expected 2 to {len(WORDS)}"):
        recall_items(PLAIN, items=1, context_lines=lines, seed=0)


def test_the_longest_list() -> None:
    (item,) = recall_items(PLAIN, items=1, context_lines=len(WORDS), seed=0)
    assert PLAIN.decode(item.prompt_ids).count(":") == len(WORDS)


@pytest.mark.model
def test_smollm2_first_tokens_differ(smollm2_tokenizer: Any) -> None:
    item = recall_items(smollm2_tokenizer, items=1, context_lines=24, seed=7)[0]
    lines = smollm2_tokenizer.decode(item.prompt_ids).removeprefix(HEADING).splitlines()
    assert len({smollm2_tokenizer(line).input_ids[0] for line in lines}) == 24
    assert 190 < len(item.prompt_ids) < 230
    assert len(item.answer_ids) == 5
