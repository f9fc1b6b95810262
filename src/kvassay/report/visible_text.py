"""Untrusted text made visible: what a reader sees is what the characters are.

Names and texts come from models, corpora and strangers' packs. Escaping HTML is not enough: a direction override can
make `exe.gpj` read as `jpg.exe`, and a zero-width character can make two names look alike. Such characters are written
as their code points.
"""

from __future__ import annotations

import unicodedata

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Control, format (direction, zero width), unpaired surrogate, private, unassigned, line and paragraph separator."""

_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")
"""Letters and marks that no font draws."""

MAX_MARKS = 3
"""Combining marks in a row that are drawn; more would be stacked over the lines above."""


def visible(text: str) -> str:
    """`text` on one line, every invisible character written as `⟨U+202E⟩`."""
    return "".join(_shown(text))


def visible_lines(text: str, mark_ends: bool = True) -> str:
    """Like `visible`, but line ends and tabs are kept and, unless told otherwise, marked with `⏎` and `⇥`."""
    line_end, tab = ("⏎\n", "⇥\t") if mark_ends else ("\n", "\t")
    lines = text.replace("\r\n", "\n").split("\n")
    return line_end.join(tab.join(visible(cell) for cell in line.split("\t")) for line in lines)


def clipped(text: str, max_characters: int) -> str:
    """At most `max_characters` of `text`, saying how many were left out."""
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}… ({len(text) - max_characters:,} more characters)"


def clipped_start(text: str, max_characters: int) -> str:
    """The last `max_characters` of `text`, saying how many stand before them."""
    if len(text) <= max_characters:
        return text
    return f"({len(text) - max_characters:,} more characters) …{text[-max_characters:]}"


def _shown(text: str) -> list[str]:
    shown: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        hidden = category in _HIDDEN_CATEGORIES or char in _BLANK_LETTERS or marks > MAX_MARKS
        shown.append(f"⟨U+{ord(char):04X}⟩" if hidden else char)
    return shown
