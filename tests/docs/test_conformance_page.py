"""The page of engines' formats holds the table that the presets say, row for row.

python -m tests.docs.test_conformance_page     prints the table to paste
"""

from __future__ import annotations

from pathlib import Path

from kvassay.core.presets import PRESETS, Conformance

PAGE = Path(__file__).parents[2] / "docs" / "design" / "conformance.md"
WORDS = {Conformance.PROVEN: "proven", Conformance.READ: "read", Conformance.NOT_EQUAL: "not equal"}


def engine_table() -> str:
    cells = [
        (name.engine, f"`{name.name}`", f"`{preset.name}`", WORDS[name.conformance], name.note.replace("|", "/"))
        for preset in PRESETS
        for name in preset.engines
    ]
    rows = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(["| engine | its name | preset | equal? | note |", "|---|---|---|---|---|", *sorted(rows)])


def test_the_table_of_engines_is_the_presets() -> None:
    assert engine_table() in PAGE.read_text()


if __name__ == "__main__":
    print(engine_table())
