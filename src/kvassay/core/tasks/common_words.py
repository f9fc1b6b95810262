"""The most frequent word of a long list: an answer that no single place of the context gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import NOUNS

BLOCK = 2
"""One word in so many is the frequent one, at a drawn place among them."""
OTHERS = 40
"""Different other words, which take turns: each stands a fortieth as often as the frequent one."""

EXAMPLES = 2
"""Short lists before the long one, with their answers."""


def common_words(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """Words in a row, half of them the same one, which is asked for."""
    frequent, *others = draws.shuffled("words", NOUNS)[: OTHERS + 1]

    def filler(_: Sequence[str]) -> Iterator[str]:
        turn = 0
        for block in count():
            place = draws.integer(f"place/{block}", 0, BLOCK - 1)
            for word in range(BLOCK):
                if word == place:
                    yield f"{frequent}, "
                else:
                    yield f"{others[turn % OTHERS]}, "
                    turn += 1

    return Script(
        question="most frequent word",
        expected=frequent,
        heading=f"The word that stands most often in a list.\n\n{_examples(others)}List: ",
        entries=(),
        ask="\nMost often:",
        filler=filler,
    )


def _examples(words: Sequence[str]) -> str:
    """Lists of seven words, three of which are the same one."""
    text: list[str] = []
    for place in range(EXAMPLES):
        often, first, second, third, fourth = words[5 * place : 5 * place + 5]
        listed = ", ".join((first, often, second, often, third, fourth, often))
        text.append(f"List: {listed}, \nMost often: {often}\n\n")
    return "".join(text)
