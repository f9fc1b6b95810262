"""Long generation: prompts whose true continuation is known for as long as wanted, and how far a text follows it.

These are for free-running generation only. Under teacher forcing each line is given, and so says nothing of the next.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.words import COMMON_WORDS, NOUNS

LONG_KINDS = ("counting", "table-copy")
SHOWN_LINES = 4
"""Of a count, before the model goes on."""


class LongPrompt(NamedTuple):
    id: str
    """`KIND/SEED/N`."""
    prompt: str
    lines: tuple[str, ...]
    """What should be written, line by line."""

    @property
    def expected(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


class Followed(NamedTuple):
    """How far a written text follows the true one."""

    right_lines: int
    """Before the first wrong one."""
    first_divergence: int | None
    """The first character that is not the true one; None if the text is right as far as it goes."""
    valid: bool
    """Whether all lines are there and right; what follows them is not looked at."""


def long_prompt(kind: str, seed: int, index: int, lines: int) -> LongPrompt:
    """Item `index` of a seed, with `lines` lines to write; raises ValueError for an unknown kind or no lines."""
    if kind not in LONG_KINDS or lines < 1:
        raise ValueError(f"found {kind!r} with {lines} lines; expected one of {', '.join(LONG_KINDS)} with 1 or more")
    draws = Draws(f"long/{kind}/{seed}/{index}")
    make = _counting if kind == "counting" else _table_copy
    prompt, expected = make(draws, lines)
    return LongPrompt(f"{kind}/{seed}/{index}", prompt, expected)


def followed(prompt: LongPrompt, text: str) -> Followed:
    """Compare a generated text, which may stop early or go on after the end, with what should have been written."""
    # The last line counts without its line break too, since a model may stop there.
    true = prompt.expected.removesuffix("\n")
    pairs = zip(text, prompt.expected, strict=False)
    divergence = next((place for place, (written, wanted) in enumerate(pairs) if written != wanted), None)
    valid = text.startswith(true) and divergence is None
    agreed = len(text) if divergence is None else divergence
    right = len(prompt.lines) if valid else prompt.expected[:agreed].count("\n")
    return Followed(right, divergence, valid)


def _counting(draws: Draws, lines: int) -> tuple[str, tuple[str, ...]]:
    """A thing is counted from a drawn number on, in a drawn step."""
    noun = draws.choice("noun", NOUNS)
    first, step = draws.integer("first", 10, 999), draws.integer("step", 1, 3)
    counted = [f"{noun} {first + step * place}" for place in range(SHOWN_LINES + lines)]
    heading = f"A count in steps of {step}.\n\n"
    return heading + "".join(f"{line}\n" for line in counted[:SHOWN_LINES]), tuple(counted[SHOWN_LINES:])


def _table_copy(draws: Draws, lines: int) -> tuple[str, tuple[str, ...]]:
    """A table that is to be written again, row by row."""
    numbers = draws.integers("numbers", 1000, 99_999)
    rows: list[str] = []
    for place in range(lines):
        noun, word = draws.choice(f"noun/{place}", NOUNS), draws.choice(f"word/{place}", COMMON_WORDS)
        rows.append(f"| {noun} | {next(numbers)} | {word} |")
    table = "".join(f"{row}\n" for row in rows)
    return f"The table:\n\n{table}\nThe same table again:\n\n", tuple(rows)
