"""A list of nouns with numbers, one of which is asked for again: every line is a distractor of every other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS


def recall(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Nouns with numbers of four digits; the number of one noun."""
    word = draws.choice("word", NOUNS)
    number = draws.integer("number", 1000, 9999)

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        numbers = draws.integers("numbers", 1000, 9999, [number])
        return (f"{noun}: {next(numbers)}\n" for noun in nouns if noun != word)

    return Script(
        question=word,
        expected=str(number),
        heading="A list of words and their numbers.\n\n",
        entries=(Entry(asked_position(draws, facts), f"{word}: {number}\n"),),
        ask=f"\nThe list again:\n{word}:",
        filler=filler,
    )
