"""The page of known faults has a row for each, names tests that exist and say so themselves, and hides no gap."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "known-faults.md"
FAULTS = [f"B{number:02}" for number in range(1, 67)]


def numbers(text: str) -> set[str]:
    return {f"B{int(number):02}" for number in re.findall(r"(?:\b|_)B0*(\d+)(?=\b|_)", text, re.IGNORECASE)}


@cache
def named_faults() -> dict[str, set[str]]:
    """By test (`folder/file.py::name`), the faults that its name, its docstring or its module's docstring says."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        module = numbers(ast.get_docstring(tree) or "")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = numbers(node.name) | numbers(ast.get_docstring(node) or "")
                found[f"{path.relative_to(ROOT / 'tests')}::{node.name}"] = own | module
    return found


def rows() -> dict[str, tuple[str, str]]:
    """By fault, the cell of tests and the cell of remarks."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| B")
    ]
    assert all(len(row) == 4 for row in cells)
    assert [row[0] for row in cells] == FAULTS
    return {row[0]: (row[2], row[3]) for row in cells}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_row_names_tests_that_exist_or_says_why_there_is_none(fault) -> None:
    tests, remark = rows()[fault]
    named = re.findall(r"`([\w/]+\.py::\w+)`", tests)
    known = named_faults()
    for name in named:
        assert name in known, f"{name} of {fault} does not exist"
        assert fault in known[name], f"{name} does not say that it is about {fault}"
    if not named:
        assert len(remark.split()) >= 6, f"{fault} has no test and no sentence that says why"
        others = [name for name, own in known.items() if fault in own]
        assert not others, f"{fault} has tests now, such as {others[0]}; name them on the page"


def test_a_test_that_does_not_exist_is_found() -> None:
    assert "cache/test_known_faults_rows.py::test_b44_rows_move_with_all_their_arrays" in named_faults()
    assert "cache/test_known_faults_rows.py::test_b44_rows" not in named_faults()
    assert numbers("test_b044_x, B9 and b51; B0x is none") == {"B09", "B44", "B51"}
