"""Answers in JSON: a record or a tool call of the context, given again word for word."""

from __future__ import annotations

import json
from itertools import islice

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.keyed import Keyed
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import TaskSettings

RECORDS = 4
CALLS = 2
"""Nouns with a record, and nouns with a call, in one context."""
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow")
TOOLS = ("set_alarm", "open_door", "play_music", "book_table", "find_route", "send_mail", "read_page", "buy_ticket")
PLACES = ("attic", "cellar", "hallway", "kitchen", "library", "office", "pantry", "studio", "workshop", "garage")


def json_record(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Records of some nouns, each a JSON object; one is given again."""
    keyed = Keyed(draws, facts, RECORDS)
    numbers = draws.integers("numbers", 1000, 9999)
    colours = draws.shuffled("colours", COLOURS)
    weights = draws.integers("weights", 10, 99)
    records = [
        json.dumps({"number": number, "colour": colour, "weight": weight})
        for number, colour, weight in islice(zip(numbers, colours, weights, strict=False), RECORDS)
    ]
    # No full stop after a record: `}.` is one token of many vocabularies, and would be another answer than `}`.
    return keyed.script(
        "A text with records in JSON.",
        [f"The record of the {word} is {record}" for word, record in zip(keyed.words, records, strict=True)],
        f"The text again: The record of the {keyed.words[0]} is",
        records[0],
    )


def tool_call(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Calls of one tool with other values for each of some nouns, in JSON; one is given again."""
    keyed = Keyed(draws, facts, CALLS)
    tool = draws.choice("tool", TOOLS)
    numbers, places = draws.integers("numbers", 1000, 9999), draws.shuffled("places", PLACES)
    calls = [
        json.dumps({"name": tool, "arguments": {"number": number, "place": place}})
        for number, place in islice(zip(numbers, places, strict=False), CALLS)
    ]
    return keyed.script(
        "A text with calls of a tool in it.",
        [f"The call for the {word} is {call}" for word, call in zip(keyed.words, calls, strict=True)],
        f"The text again: The call for the {keyed.words[0]} is",
        calls[0],
    )
