"""Sentences that each say something of another noun, far apart in prose; what one of them says is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvassay.core.tasks.draws import Draws
from kvassay.core.tasks.prose import sentences
from kvassay.core.tasks.script import Entry, Facts, Script, asked_position
from kvassay.core.tasks.words import NOUNS


class Keyed:
    """The asked noun, `words[0]`, and the others, with a place in the text for a sentence about each."""

    def __init__(self, draws: Draws, facts: Facts, keys: int) -> None:
        self.words: Sequence[str] = draws.shuffled("words", NOUNS)[:keys]
        self._positions = [
            asked_position(draws, facts),
            *(draws.share(f"position/{other}") for other in range(1, keys)),
        ]
        self._draws = draws

    def script(self, heading: str, said: Sequence[str], ask: str, expected: str) -> Script:
        """`said` is the sentence about each noun, in their order."""
        return Script(
            question=self.words[0],
            expected=expected,
            heading=f"{heading}\n\n",
            entries=tuple(
                Entry(position, f"{sentence} ") for position, sentence in zip(self._positions, said, strict=True)
            ),
            ask=f"\n\n{ask}",
            filler=self._filler,
        )

    def _filler(self, nouns: Sequence[str]) -> Iterator[str]:
        return sentences(self._draws, self.words)
