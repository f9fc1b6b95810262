"""Long generation: contexts whose true continuation is known for as long as wanted, and how far a text follows it.

For written answers only. Under teacher forcing each line is given, and so says nothing of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.script import Facts, Script
from kvassay.core.tasks.settings import TaskSettings
from kvassay.core.tasks.words import COMMON_WORDS, NOUNS

SHOWN_LINES = 4
"""Of a count, before the model goes on."""


class Followed(NamedTuple):
    """How far a written text follows the true one."""

    right_lines: int
    """Before the first wrong one."""
    first_divergence: int | None
    """The first character that is not the true one; None if the text is right as far as it goes."""
    valid: bool
    """Whether all lines are there and right; what follows them is not looked at."""


def followed(expected: str, text: str) -> Followed:
    """Compare a written text, which may stop early or go on after the end, with the lines that it should have.

    `expected` joins them with line breaks. The last one counts without its own, since a model may stop there.
    """
    true = f"{expected}\n"
    pairs = zip(text, true, strict=False)
    divergence = next((place for place, (written, wanted) in enumerate(pairs) if written != wanted), None)
    valid = text.startswith(expected) and divergence is None
    agreed = len(text) if divergence is None else divergence
    right = line_count(expected) if valid else true[:agreed].count("\n")
    return Followed(right, divergence, valid)


def line_count(expected: str) -> int:
    return expected.count("\n") + 1


def lines_ended(expected: str, text: str) -> bool:
    """Whether as many lines are written as are asked for, right or wrong."""
    return text.count("\n") >= line_count(expected)


def written_lines(expected: str, text: str) -> str:
    """The text as far as lines are asked for."""
    return "\n".join(text.split("\n")[: line_count(expected)])


def counting(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """A thing is counted from a drawn number on, in a drawn step; the last line that is shown asks for the next."""
    noun = draws.choice("noun", NOUNS)
    first, step = draws.integer("first", 10, 999), draws.integer("step", 1, 3)
    counted = [f"{noun} {first + step * place}" for place in range(SHOWN_LINES + int(facts["lines"]))]
    shown = [f"{line}\n" for line in counted[:SHOWN_LINES]]
    return _script(noun, f"A count in steps of {step}.\n\n" + "".join(shown[:-1]), shown[-1], counted[SHOWN_LINES:])


def table_copy(draws: Draws, settings: TaskSettings, facts: Facts) -> Script:
    """A table that is to be written again, row by row."""
    numbers = draws.integers("numbers", 1000, 99_999)
    rows: list[str] = []
    for place in range(int(facts["lines"])):
        noun, word = draws.choice(f"noun/{place}", NOUNS), draws.choice(f"word/{place}", COMMON_WORDS)
        rows.append(f"| {noun} | {next(numbers)} | {word} |")
    table = "".join(f"{row}\n" for row in rows)
    return _script("table", f"The table:\n\n{table}", "\nThe same table again:\n\n", rows)


def _script(question: str, heading: str, ask: str, lines: Sequence[str]) -> Script:
    return Script(question, "\n".join(lines), heading, entries=(), ask=ask, filler=_none, lead="")


def _none(nouns: Sequence[str]) -> Iterator[str]:
    return iter(())
