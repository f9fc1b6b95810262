from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.pack.reader import PackContent
from kvassay.report import render_report
from tests.report.page_parts import Page, parse_page
from tests.report.report_sample import write_sample


@pytest.fixture(scope="session")
def content(tmp_path_factory: pytest.TempPathFactory) -> PackContent:
    return write_sample(tmp_path_factory.mktemp("report") / "pack")


@pytest.fixture(scope="session")
def page(content: PackContent) -> Page:
    return parse_page(render_report(content))


@pytest.fixture(scope="session")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> PackContent:
    return write_sample(tmp_path_factory.mktemp("report") / "sliced", slices=3)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> PackContent:
    """A pack whose free files hold nothing but the geometry."""
    return write_sample(tmp_path_factory.mktemp("report") / "bare", bare=True)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> PackContent:
    """A pack without a single row."""
    folder: Path = tmp_path_factory.mktemp("report") / "empty"
    return write_sample(folder, bare=True, with_rows=False)
