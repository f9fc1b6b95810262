"""Lists of entries with a key, one of which is asked for again: numbers (recall) and words (rare copy)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import COMMON_WORDS, NOUNS, RARE_WORDS

VALUES = {"common": COMMON_WORDS, "rare": RARE_WORDS}
VALUE_WORDS = 2


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


def rare_copy(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Nouns with two words, common ones or rare ones; the two words of one noun."""
    word = draws.choice("word", NOUNS)
    values = draws.shuffled("values", VALUES[facts["rarity"]])
    expected = " ".join(values[:VALUE_WORDS])
    others = values[VALUE_WORDS:]

    def filler(nouns: Sequence[str]) -> Iterator[str]:
        for place, noun in enumerate(noun for noun in nouns if noun != word):
            pair = [draws.choice(f"other/{place}/{which}", others) for which in range(VALUE_WORDS)]
            yield f"{noun}: {' '.join(pair)}\n"

    return Script(
        question=word,
        expected=expected,
        heading="A list of words and their partners.\n\n",
        entries=(Entry(asked_position(draws, facts), f"{word}: {expected}\n"),),
        ask=f"\nThe list again:\n{word}:",
        filler=filler,
    )
