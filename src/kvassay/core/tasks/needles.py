"""Sentences with a number in a text that does not matter: a pass key in repeated filler, needles in varied prose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.prose import sentences
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS

NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}


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
        "\n\nWhat is the pass key? The pass key is",
    ),
    "de": PasskeyText(
        "In diesem Text steht ein Schlüssel.\n\n",
        "Der Weg ist lang und das Feld ist weit. Der Fluss zieht langsam an der Mühle vorbei. Wir gehen weiter. ",
        "Der Schlüssel ist {number}. Merke ihn dir. ",
        "\n\nWas ist der Schlüssel? Der Schlüssel ist",
    ),
    "fr": PasskeyText(
        "Une clé est cachée dans ce texte.\n\n",
        "La route est longue et le champ est large. La rivière passe lentement devant le moulin. Nous marchons. ",
        "La clé est {number}. Retenez-la. ",
        "\n\nQuelle est la clé ? La clé est",
    ),
    "es": PasskeyText(
        "En este texto hay una clave.\n\n",
        "El camino es largo y el campo es ancho. El río pasa despacio junto al molino. Seguimos andando. ",
        "La clave es {number}. Recuérdela. ",
        "\n\n¿Cuál es la clave? La clave es",
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
    words = draws.shuffled("words", NOUNS)[:keys]
    numbers = list(islice(draws.integers("numbers", 1000, 9999), keys))
    positions = [asked_position(draws, facts), *(draws.share(f"position/{other}") for other in range(1, keys))]
    return Script(
        question=words[0],
        expected=str(numbers[0]),
        heading="A text with secret numbers in it.\n\n",
        entries=tuple(
            Entry(position, f"The secret number of the {word} is {number}. ")
            for position, word, number in zip(positions, words, numbers, strict=True)
        ),
        ask=f"\n\nThe secret number of the {words[0]} is",
        filler=partial(_prose, draws, words),
    )


def multi_value(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Several sentences that give the same noun a number each; all of them, in the order of the text."""
    assert settings.values is not None
    count = settings.values
    word = draws.choice("word", NOUNS)
    numbers = [str(number) for number in islice(draws.integers("numbers", 1000, 9999), count)]
    positions = sorted(draws.share(f"position/{which}") for which in range(count))
    return Script(
        question=word,
        expected=", ".join(numbers),
        heading="A text with secret numbers in it.\n\n",
        entries=tuple(
            Entry(position, f"A secret number of the {word} is {number}. ")
            for position, number in zip(positions, numbers, strict=True)
        ),
        ask=f"\n\nThe {NUMBER_WORDS[count]} secret numbers of the {word}, in the order of the text, are",
        filler=partial(_prose, draws, [word]),
    )


def _repeated(unit: str, nouns: Sequence[str]) -> Iterator[str]:
    return repeat(unit)


def _prose(draws: Draws, taken: Sequence[str], nouns: Sequence[str]) -> Iterator[str]:
    return sentences(draws, taken)
