"""Answers in JSON: a record of the context given again, and a tool call made from a tool's line and a request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS

COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
FIRST_ARGUMENTS = ("room", "place", "floor", "shelf", "corner", "street")
SECOND_ARGUMENTS = ("minutes", "level", "count", "weight", "speed", "price")
PLACES = ("attic", "cellar", "hallway", "kitchen", "library", "office", "pantry", "studio", "workshop", "garage")
EXAMPLES = 2


def json_record(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Records by name, each one JSON object on a line; one is given again."""
    word = draws.choice("word", NOUNS)
    number = draws.integer("number", 1000, 9999)
    expected = _record(draws, "asked", number)

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        numbers = draws.integers("numbers", 1000, 9999, [number])
        for place, noun in enumerate(noun for noun in nouns if noun != word):
            yield f"{noun}: {_record(draws, f'other/{place}', next(numbers))}\n"

    return Script(
        question=word,
        expected=expected,
        heading="A list of records in JSON.\n\n",
        entries=(Entry(asked_position(draws, facts), f"{word}: {expected}\n"),),
        ask=f"\nThe list again:\n{word}:",
        filler=filler,
    )


class _Tool(NamedTuple):
    word: str
    number: int
    first: str
    second: str

    @property
    def line(self) -> str:
        return f"{self.word}: tool_{self.number}({self.first}, {self.second})\n"

    def request(self, place: str, amount: int) -> str:
        return f"Request: {self.word}, {place}, {amount}\nCall:"

    def call(self, place: str, amount: int) -> str:
        arguments = {self.first: place, self.second: amount}
        return json.dumps({"name": f"tool_{self.number}", "arguments": arguments})


def tool_call(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Tools by topic with the names of their arguments; a request gives a topic and values, the answer is the call."""
    words = draws.shuffled("words", NOUNS)[: EXAMPLES + 1]
    numbers = list(islice(draws.integers("numbers", 1000, 9999), len(words)))
    tools = [
        _tool(draws, f"tool/{which}", word, number)
        for which, (word, number) in enumerate(zip(words, numbers, strict=True))
    ]
    values = [
        (draws.choice(f"place/{which}", PLACES), draws.integer(f"amount/{which}", 2, 99)) for which in range(len(tools))
    ]
    positions = [asked_position(draws, facts), *(draws.share(f"position/{which}") for which in range(EXAMPLES))]

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        others = draws.integers("others", 1000, 9999, numbers)
        for place, noun in enumerate(noun for noun in nouns if noun not in words):
            yield _tool(draws, f"other/{place}", noun, next(others)).line

    asked, *examples = zip(tools, values, strict=True)
    shown = [f"{tool.request(*given)} {tool.call(*given)}\n" for tool, given in examples]
    return Script(
        question=words[0],
        expected=asked[0].call(*asked[1]),
        heading="A list of tools and their arguments.\n\n",
        entries=tuple(Entry(position, tool.line) for position, tool in zip(positions, tools, strict=True)),
        ask="\n" + "".join(shown) + asked[0].request(*asked[1]),
        filler=filler,
    )


def _record(draws: Draws, what: str, number: int) -> str:
    colour = draws.choice(f"{what}/colour", COLOURS)
    return json.dumps({"number": number, "colour": colour, "sold": draws.integer(f"{what}/sold", 0, 1) == 1})


def _tool(draws: Draws, what: str, word: str, number: int) -> _Tool:
    first, second = draws.choice(f"{what}/first", FIRST_ARGUMENTS), draws.choice(f"{what}/second", SECOND_ARGUMENTS)
    return _Tool(word, number, first, second)
