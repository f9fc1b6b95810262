"""One Chromium and one lab for all browser tests of a worker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvassay.lab.capture import CaptureDesk, capture
from kvassay.lab.server import Lab
from tests.lab.running import running
from tests.report.report_sample import write_sample

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Ignored by git: artefacts of a run, to be looked at."""

QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
)
HOSTILE_NAME = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, a fresh profile. Only where it is missing and cannot be installed is a test skipped."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sentence = "no Chromium: apt-get install chromium, which .ci/run does for root"
        if os.geteuid() == 0:
            pytest.fail(sentence)
        pytest.skip(sentence)
    from playwright.sync_api import sync_playwright

    arguments = [*QUIET, "--no-sandbox"] if os.geteuid() == 0 else [*QUIET]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    write_sample(folder / "demo")
    write_sample(folder / HOSTILE_NAME, slices=3)
    return folder


@pytest.fixture(scope="session")
def lab(packs: Path, tiny_folder: Path, texts: Path) -> Iterator[Lab]:
    desk = CaptureDesk(str(tiny_folder), lambda model, say: capture(model, say, corpus=f"path:{texts}"))
    with running(packs, str(tiny_folder), desk) as opened:
        yield opened
