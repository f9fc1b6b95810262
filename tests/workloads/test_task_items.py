"""Items of every kind: fitted to their length, answered once by their context, always the same (R44 to R49)."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.digest import sha256_json
from kvassay.core.slices import slice_labels
from kvassay.core.tasks.kinds import KINDS, TEACHER_FORCED_KINDS, length_fits, task_draw
from kvassay.errors import WorkloadError
from kvassay.workloads.tasks.items import TaskItem, task_items

from .task_tokenizers import BOS, GREEDY, PLAIN, Characters

LENGTHS = (1024, 2048)
"""Of a tokenizer with about a token a character; some 250 and 500 tokens of SmolLM2."""
GOLDEN: dict[str, str] = {
    "arithmetic": "e89357f65c9109d4",
    "common-words": "f94c08ba29ee997c",
    "json": "912a04d58a3a60dd",
    "multi-key": "d111c19ea14b378d",
    "multi-value": "d67012545152008b",
    "needle": "e3d34f2b1c91b137",
    "passkey": "5c7533bda21b0493",
    "rare-copy": "45804449202b06f0",
    "recall": "02073d787c8444fe",
    "tool-call": "90aea42a851c2687",
    "variable-tracking": "51417e661d7bf9bd",
}
ANSWER_STANDS_ONCE = sorted(
    set(TEACHER_FORCED_KINDS) - {"common-words", "multi-value", "variable-tracking", "arithmetic"}
)
"""Kinds whose whole answer stands in the context; the others make theirs of several places."""


def settings_of(kind: str, **fields: Any):
    return TaskBound.model_validate({"kind": kind, "margin": 0.1, "context_tokens": LENGTHS, **fields}).settings


def items_of(kind: str, count: int = 6, tokenizer: Any = PLAIN, **fields: Any) -> list[TaskItem]:
    return task_items(tokenizer, kind, settings_of(kind, **fields), 7, range(count))


@pytest.mark.parametrize("kind", sorted(TEACHER_FORCED_KINDS))
@pytest.mark.parametrize("tokenizer", [PLAIN, BOS, GREEDY], ids=["plain", "bos", "greedy"])
def test_r45_items_fit_their_token_budget(kind: str, tokenizer: Any) -> None:
    for item in items_of(kind, tokenizer=tokenizer):
        (asked,) = (int(label[7:]) for label in slice_labels(item.slice) if label.startswith("tokens="))
        assert len(item.token_ids) <= asked
        assert length_fits(len(item.prompt_ids), asked)
        # No further unit of filler would have fitted; the longest is a sentence or a line.
        assert asked - len(item.token_ids) < 130
        text = tokenizer.decode(item.token_ids, skip_special_tokens=True)
        assert tuple(tokenizer(text).input_ids) == item.token_ids
        assert tokenizer.decode(item.answer_ids).endswith(item.expected)


@pytest.mark.parametrize("kind", ANSWER_STANDS_ONCE)
def test_the_context_gives_the_answer_exactly_once(kind: str) -> None:
    for item in items_of(kind, 12):
        assert PLAIN.decode(item.prompt_ids).count(item.expected) == 1
        assert item.expected not in PLAIN.decode(item.question_ids)


def test_several_values_stand_in_the_order_of_the_answer() -> None:
    for item in items_of("multi-value", 12, values=4):
        text = PLAIN.decode(item.prompt_ids)
        numbers = re.findall(r"\d+", item.expected)
        assert len(numbers) == 4
        assert [text.count(number) for number in numbers] == [1] * 4
        assert sorted(numbers, key=text.index) == numbers
        assert f"The first secret {item.question} is {numbers[0]}. " in text
        assert f", the fourth secret {item.question} is {numbers[3]}" in item.expected


def test_a_variable_leads_to_its_number_in_as_many_hops() -> None:
    seen = set()
    for item in items_of("variable-tracking", 12, hops=(1, 2, 3)):
        text = PLAIN.decode(item.prompt_ids)
        said = dict(re.findall(r"\b([A-Z]) = (\w+)\.", text))
        value, hops, found = item.question, 0, []
        while not value.isdigit():
            after = said[value]
            found.append(f"{value} = {after}")
            value, hops = after, hops + 1
        assert ". ".join(found) == f"{item.question} = {item.expected}"
        # A noun is told before another one refers to it.
        assert [text.index(one) for one in found] == sorted((text.index(one) for one in found), reverse=True)
        seen.add((hops - 1, item.slice.rpartition("hops=")[2]))
    assert seen == {(1, "1"), (2, "2"), (3, "3")}


def test_the_frequent_word_is_the_most_frequent_by_far() -> None:
    for item in items_of("common-words"):
        words = PLAIN.decode(item.prompt_ids).rpartition("List: ")[2].split(", ")
        counts = sorted(((words.count(word), word) for word in set(words)), reverse=True)
        assert counts[0][1] == item.expected
        assert counts[0][0] > 4 * counts[1][0]


def test_b20_sums_are_those_of_the_context_and_right() -> None:
    for item in items_of("arithmetic", 12, steps=(2, 4)):
        steps = [[int(number) for number in step.split(" + ")] for step in item.expected.split(" = ")]
        assert len(steps) == 1 + int(item.slice.rpartition("steps=")[2])
        assert (
            PLAIN.decode(item.prompt_ids).count(f"The sum of the {item.question} is {item.expected.split(' = ')[0]}.")
            == 1
        )
        for before, after in pairwise(steps):
            assert after == [before[0] + before[1], *before[2:]]
        assert len(steps[-1]) == 1


def test_records_and_calls_are_told_apart_by_every_part() -> None:
    """No two of a context share a value, so that none can be read from the wrong one."""
    for kind, count in (("json", 4), ("tool-call", 2)):
        for item in items_of(kind):
            text = PLAIN.decode(item.prompt_ids)
            found = [json.loads(one) for one in re.findall(r" is (\{.*?\}+) ", text)]
            assert len(found) == count
            assert json.loads(item.expected) in found
            assert KINDS[kind].scored(item.expected, json.dumps(found[0])).parses
            values = [one.get("arguments", one) for one in found]
            assert all(len({one[name] for one in values}) == count for name in values[0])


@pytest.mark.parametrize("kind", sorted(kind for kind in KINDS if "depths" in KINDS[kind].defaults))
def test_r47_the_asked_entry_stands_in_its_third(kind: str) -> None:
    for item in items_of(kind, 9, context_tokens=(2048,)):
        text = PLAIN.decode(item.prompt_ids)
        script = task_draw(kind, settings_of(kind, context_tokens=(2048,)), 7, int(item.id.rpartition("/")[2])).script
        place = text.index(script.entries[0].text) / len(text)
        low, high = {"early": (0, 0.4), "middle": (0.25, 0.75), "late": (0.6, 1)}[
            item.slice.rpartition("depth=")[2][:6].partition(",")[0]
        ]
        assert low <= place <= high


@pytest.mark.parametrize("kind", sorted(TEACHER_FORCED_KINDS))
def test_items_are_the_same_on_every_machine(kind: str) -> None:
    """Evidence of one machine is repeated on another, so a change of a generator must not pass unseen."""
    items = items_of(kind, 4, Characters())
    assert sha256_json([[item.id, item.slice, list(item.token_ids)] for item in items])[:16] == GOLDEN[kind]


def test_two_tasks_of_one_kind_share_no_item() -> None:
    settings = settings_of("needle")
    one, other = (task_items(PLAIN, name, settings, 7, range(8)) for name in ("needle", "needle-again"))
    assert {item.token_ids for item in one}.isdisjoint(item.token_ids for item in other)
    assert other[0].id == "needle-again/7/0"


@pytest.mark.parametrize(
    ("kind", "tokens", "message"),
    [
        ("tool-call", 128, r"tool-call/7/0 takes \d+ tokens without any filler, of 128 context_tokens"),
        ("multi-value", 260, r"leaves \d+ to what is read back"),
        ("recall", 8192, r"need more than the 434 entries .* write at most \d+"),
    ],
)
def test_r45_a_length_that_cannot_be_had_is_refused_with_the_way_out(kind: str, tokens: int, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        items_of(kind, 1, context_tokens=(tokens,))
