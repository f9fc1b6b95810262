"""Sentences to be found in a text that does not matter: a pass key in repeated filler, needles in varied prose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.keyed import Keyed
from kvassay.core.tasks.prose import sentences
from kvassay.core.tasks.script import Entry, Facts, Script, ascending_positions, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import COMMON_WORDS, RARE_WORDS

VALUES = {"common": COMMON_WORDS, "rare": RARE_WORDS}
THINGS = ("number", "code", "year", "price")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
COPY_KEYS = 4
"""Nouns with words in one context."""


class PasskeyText(NamedTuple):
    heading: str
    filler: str
    key: str
    ask: str


PASSKEY_TEXTS = {
    "en": PasskeyText(
        "A pass key is hidden in this text.\n\n",
        "The road is long and the field is wide. The river runs slowly past the mill. We walk on. ",
        "The pass key is {number}. Remember it. ",
        "\n\nThe text again: The pass key is",
    ),
    "de": PasskeyText(
        "In diesem Text steht ein Schlüssel.\n\n",
        "Der Weg ist lang und das Feld ist weit. Der Fluss zieht langsam an der Mühle vorbei. Wir gehen weiter. ",
        "Der Schlüssel ist {number}. Merke ihn dir. ",
        "\n\nDer Text noch einmal: Der Schlüssel ist",
    ),
    "fr": PasskeyText(
        "Une clé est cachée dans ce texte.\n\n",
        "La route est longue et le champ est large. La rivière passe lentement devant le moulin. Nous marchons. ",
        "La clé est {number}. Retenez-la. ",
        "\n\nLe texte encore une fois : La clé est",
    ),
    "es": PasskeyText(
        "En este texto hay una clave.\n\n",
        "El camino es largo y el campo es ancho. El río pasa despacio junto al molino. Seguimos andando. ",
        "La clave es {number}. Recuérdela. ",
        "\n\nEl texto otra vez: La clave es",
    ),
}


def passkey(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """One sentence with a number of five digits, in filler that repeats."""
    text = PASSKEY_TEXTS[facts["language"]]
    number = draws.integer("number", 10_000, 99_999)
    return Script(
        question=f"pass key ({facts['language']})",
        expected=str(number),
        heading=text.heading,
        entries=(Entry(asked_position(draws, facts), text.key.format(number=number)),),
        ask=text.ask,
        filler=partial(_repeated, text.filler),
    )


def needle(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """One sentence that gives a noun a number, in varied prose."""
    return _needles(draws, facts, keys=1)


def multi_key(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Several such sentences, each with its own noun; the number of one noun."""
    assert settings.keys is not None
    return _needles(draws, facts, keys=settings.keys)


def _needles(draws: Draws, facts: Facts, keys: int) -> Script:
    keyed = Keyed(draws, facts, keys)
    numbers = list(islice(draws.integers("numbers", 1000, 9999), keys))
    return keyed.script(
        "A text with secret numbers in it.",
        [f"The secret number of the {word} is {number}." for word, number in zip(keyed.words, numbers, strict=True)],
        f"The text again: The secret number of the {keyed.words[0]} is",
        str(numbers[0]),
    )


def rare_copy(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Sentences that give a noun two words, common ones or rare ones; the two words of one noun."""
    keyed = Keyed(draws, facts, COPY_KEYS)
    drawn = iter(draws.shuffled("values", VALUES[facts["rarity"]]))
    values = [f"{next(drawn)} and {next(drawn)}" for _ in keyed.words]
    return keyed.script(
        "A text with secret words in it.",
        [f"The secret words of the {word} are {value}." for word, value in zip(keyed.words, values, strict=True)],
        f"The text again: The secret words of the {keyed.words[0]} are",
        values[0],
    )


def multi_value(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Several numbers of one thing, counted, among as many of another; all of the one, after all of the other."""
    assert settings.values is not None
    things = draws.shuffled("things", THINGS)[:2]
    drawn = draws.integers("numbers", 1000, 9999)
    said = [
        [f"he {ordinal} secret {thing} is {next(drawn)}" for ordinal in ORDINALS[: settings.values]] for thing in things
    ]
    asked, example = (f"T{', t'.join(several)}" for several in said)
    begun = f"The {ORDINALS[0]} secret {things[0]} is"
    return Script(
        question=things[0],
        expected=asked.removeprefix(f"{begun} "),
        heading="A text with secrets in it.\n\n",
        entries=tuple(
            Entry(position, f"T{sentence}. ")
            for thing, several in zip(things, said, strict=True)
            for position, sentence in zip(ascending_positions(draws, thing, len(several)), several, strict=True)
        ),
        ask=f"\n\nThe text again:\n{example}.\n{begun}",
        filler=partial(_prose, draws, things),
    )


def _repeated(unit: str, nouns: Sequence[str]) -> Iterator[str]:
    return repeat(unit)


def _prose(draws: Draws, taken: Sequence[str], nouns: Sequence[str]) -> Iterator[str]:
    return sentences(draws, taken)
