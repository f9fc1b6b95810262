"""Answers in JSON: a record of the context given again, and a tool call made from a tool's sentence and a request."""

from __future__ import annotations

import json
from itertools import islice
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.keyed import Keyed
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import TaskSettings

RECORDS = 4
EXAMPLES = 2
"""Worked examples before the request, with tools of the same context."""
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
FIRST_ARGUMENTS = ("room", "place", "floor", "shelf", "corner", "street")
SECOND_ARGUMENTS = ("minutes", "level", "count", "weight", "speed", "price")
PLACES = ("attic", "cellar", "hallway", "kitchen", "library", "office", "pantry", "studio", "workshop", "garage")


def json_record(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Records of some nouns, each a JSON object; one is given again."""
    keyed = Keyed(draws, facts, RECORDS)
    numbers = draws.integers("numbers", 1000, 9999)
    colours = iter(draws.shuffled("colours", COLOURS))
    records = [
        json.dumps({"number": number, "colour": colour, "sold": draws.integer(f"sold/{number}", 0, 1) == 1})
        for number, colour in islice(zip(numbers, colours, strict=False), RECORDS)
    ]
    # No full stop after a record: `}.` is one token of many vocabularies, and would be another answer than `}`.
    return keyed.script(
        "A text with records in JSON.",
        [f"The record of the {word} is {record}" for word, record in zip(keyed.words, records, strict=True)],
        f"The text again: The record of the {keyed.words[0]} is",
        records[0],
    )


class _Tool(NamedTuple):
    """A tool of a noun, and a request for it."""

    word: str
    number: int
    first: str
    second: str
    place: str
    amount: int

    @property
    def sentence(self) -> str:
        schema = f'{{"name": "tool_{self.number}", "arguments": {{"{self.first}": text, "{self.second}": number}}}}'
        return f"The tool of the {self.word} is {schema}"

    @property
    def request(self) -> str:
        return f"With {self.first} {self.place} and {self.second} {self.amount}, the tool of the {self.word} is"

    @property
    def call(self) -> str:
        arguments = {self.first: self.place, self.second: self.amount}
        return json.dumps({"name": f"tool_{self.number}", "arguments": arguments})


def tool_call(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Tools of nouns, with their arguments; a request gives values for the tool of one noun, the answer is the call."""
    keyed = Keyed(draws, facts, EXAMPLES + 1)
    numbers = islice(draws.integers("numbers", 1000, 9999), len(keyed.words))
    tools = [
        _Tool(
            word,
            number,
            draws.choice(f"first/{word}", FIRST_ARGUMENTS),
            draws.choice(f"second/{word}", SECOND_ARGUMENTS),
            draws.choice(f"place/{word}", PLACES),
            draws.integer(f"amount/{word}", 2, 99),
        )
        for word, number in zip(keyed.words, numbers, strict=True)
    ]
    asked, *examples = tools
    shown = [f"{tool.request} {tool.call}" for tool in examples]
    return keyed.script(
        "A text with tools in it.",
        [tool.sentence for tool in tools],
        "".join(f"{line}\n" for line in ("The tools called:", *shown)) + asked.request,
        asked.call,
    )
