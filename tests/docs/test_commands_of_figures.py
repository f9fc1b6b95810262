"""Whoever reads a figure can run it again: one runner, and each page names its part of it (R109)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])
MODULE = re.compile(r"python -m (benchmarks[\w.]*)")


def named(path: Path) -> set[str]:
    return set(MODULE.findall(path.read_text()))


def runnable() -> set[str]:
    """Modules under `benchmarks` that can be run by `python -m`."""
    found = set()
    for path in (ROOT / "benchmarks").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.name == "__main__.py":
            found.add(".".join(parts[:-1]))
        elif '__name__ == "__main__"' in path.read_text():
            found.add(".".join(parts))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_r109_every_benchmark_that_a_page_names_can_be_run(page: Path) -> None:
    for module in named(page):
        assert module in runnable(), f"{page.name} names {module}, which is not there"
        assert find_spec(module) is not None


def test_r109_every_benchmark_is_named_by_a_page_or_by_make() -> None:
    told = set().union(*(named(page) for page in PAGES)) | named(ROOT / "Makefile")
    text = (ROOT / "Makefile").read_text() + "".join(page.read_text() for page in PAGES)
    missing = [
        module for module in sorted(runnable()) if module not in told and module.replace(".", "/") + ".py" not in text
    ]
    assert not missing, f"no page says what {missing} is for"
