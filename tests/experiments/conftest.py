"""One run of the experiment for all tests: in memory, and as a folder that tests copy before they touch it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvassay.experiments.attention_error import (
    ExperimentResult,
    Measurements,
    measure_attention_error,
    run_attention_error,
)


@pytest.fixture(scope="session")
def measured() -> Measurements:
    return measure_attention_error()


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return run_attention_error(tmp_path_factory.mktemp("attention-error") / "run")


@pytest.fixture
def copied(result: ExperimentResult, tmp_path: Path) -> Path:
    """A copy of the folder that a test may tamper with."""
    return Path(shutil.copytree(result.folder, tmp_path / "copy"))


Find = Callable[..., dict]


@pytest.fixture(scope="session")
def row(measured: Measurements) -> Find:
    """row(seed, N, input, quantizer) of the 36."""
    by_key = {(r["seed"], r["n_tokens"], r["input"], r["quantizer"]): r for r in measured.tables.rows}
    return lambda *key: by_key[key]


@pytest.fixture(scope="session")
def variant(measured: Measurements) -> Find:
    """variant(seed, N, name) of the table beside them."""
    by_key = {(r["seed"], r["n_tokens"], r["variant"]): r for r in measured.tables.variants}
    return lambda *key: by_key[key]
