from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.bounded import Outcome, run_bounded

from tests.pack.sample_pack import write_sample

GROWTH_NBYTES = 250_000_000
"""No hostile input of this folder may cost more; most are a few kilobytes."""


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile") / "sample"
    write_sample(out)
    return out


@pytest.fixture
def pack(sample: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sample, tmp_path / "inside" / "pack")


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the input that must be as it was after the test, to the nanosecond."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    before = _seen(folder)
    yield folder
    assert _seen(folder) == before


@pytest.fixture
def bounded(outside: Path) -> Callable[..., Outcome]:
    """Run a call in a bounded child: it must neither crash nor hang, nor open anything in `outside`."""

    def run(call: Callable[[], Any]) -> Outcome:
        outcome = run_bounded(call)
        assert outcome.sound, (outcome.status, outcome.message)
        assert outcome.grown_nbytes < GROWTH_NBYTES
        assert not [path for path in outcome.opened if Path(os.path.abspath(path)).is_relative_to(outside)]
        return outcome

    return run


def _seen(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        path.name: (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.iterdir())
    } | {".": (folder.stat().st_mtime_ns, folder.stat().st_mode, b"")}
