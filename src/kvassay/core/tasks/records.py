"""Answers in JSON: a record or a tool call of the context, given again word for word."""

from __future__ import annotations

import json
from itertools import islice

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.keyed import Keyed
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import TaskSettings

RECORDS = 4
"""Nouns with a record or a call in one context."""
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
CALL_WORDS = {
    "tool": (
        "set_alarm",
        "open_door",
        "play_music",
        "book_table",
        "find_route",
        "send_mail",
        "read_page",
        "buy_ticket",
    ),
    "first argument": ("room", "place", "floor", "shelf", "corner", "street"),
    "place": ("attic", "cellar", "hallway", "kitchen", "library", "office", "pantry", "studio", "workshop", "garage"),
    "second argument": ("minutes", "level", "count", "weight", "speed", "price"),
}


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


def tool_call(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Calls that some nouns need, each a tool's name and its arguments in JSON; one is given again."""
    keyed = Keyed(draws, facts, RECORDS)
    drawn = [iter(draws.shuffled(what, words)) for what, words in CALL_WORDS.items()]
    calls: list[str] = []
    for word in keyed.words:
        tool, first, place, second = (next(words) for words in drawn)
        arguments = {first: place, second: draws.integer(f"amount/{word}", 2, 99)}
        calls.append(json.dumps({"name": tool, "arguments": arguments}))
    return keyed.script(
        "A text with calls of tools in it.",
        [f"The call for the {word} is {call}" for word, call in zip(keyed.words, calls, strict=True)],
        f"The text again: The call for the {keyed.words[0]} is",
        calls[0],
    )
