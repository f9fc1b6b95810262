"""Varied sentences without digits, made from nouns: filler that hides a needle and never gives its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.words import NOUNS

VERBS = ("carried", "moved", "found", "lost", "bought", "sold", "painted", "cleaned", "hid", "watched", "fixed", "drew")
WHEN = (
    "in the morning",
    "before noon",
    "after the rain",
    "last winter",
    "at night",
    "on the way home",
    "a year ago",
    "while the others slept",
    "without a word",
    "as always",
    "for the first time",
    "in a hurry",
)
ADJECTIVES = ("big", "black", "dark", "fine", "good", "great", "green", "heavy", "large", "long", "new", "old", "small")


def sentences(draws: Draws, taken: Sequence[str]) -> Iterator[str]:
    """Without end; none names a noun of `taken`."""
    nouns = [noun for noun in NOUNS if noun not in taken]
    for place in count():
        first, second = (draws.choice(f"prose/{place}/{which}", nouns) for which in ("subject", "object"))
        adjective = draws.choice(f"prose/{place}/adjective", ADJECTIVES)
        verb = draws.choice(f"prose/{place}/verb", VERBS)
        when = draws.choice(f"prose/{place}/when", WHEN)
        yield f"The {first} {verb} the {adjective} {second} {when}. "
