"""A short seeded run of every fuzzer, and proof that it would see a fault."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from benchmarks.fuzz.__main__ import main
from benchmarks.fuzz.bounded import run_bounded
from benchmarks.fuzz.hunt import hunt
from benchmarks.fuzz.mutations import byte_mutations
from benchmarks.fuzz.parsers import PARSERS, Parser

from kvassay.errors import PackError
from tests.thorough import times


@pytest.mark.parametrize("name", PARSERS)
def test_r108_no_mutated_input_makes_a_parser_do_what_it_must_not(name: str, tmp_path: Path) -> None:
    """Accepted, or refused by a named error, within 500 MB and 2 s of CPU."""
    whole_packs = name in ("manifest", "contract", "arms", "verdicts", "ledgers", "subject", "plan") or "rows" in name
    found = hunt(name, PARSERS[name], times(2, 20) if whole_packs else times(8, 100), None, 20_260_101, tmp_path)
    assert found.cases >= 2
    assert not found.findings, found.findings


def _seed(folder: Path) -> Path:
    (folder / "file").write_bytes(bytes(range(1, 200)))
    return folder / "file"


def _faulty(file: Path) -> int:
    data = file.read_bytes()
    if len(data) < 100:
        raise ValueError("an exception without a name of ours")
    return len(data)


def test_a_planted_fault_is_found_shrunk_and_kept(tmp_path: Path, capsys) -> None:
    found = hunt("planted", Parser(_seed, byte_mutations, _faulty), 40, None, 1, tmp_path)
    (finding,) = found.findings
    assert finding.status == "fault"
    assert "an exception without a name of ours" in finding.message
    assert finding.path is not None
    assert len((finding.path / "input").read_bytes()) < 100
    assert "ValueError" in (finding.path / "outcome.txt").read_text()
    assert main(["--parser", "format-name", "--minutes", "5", "--examples", "2", "--out", str(tmp_path)]) == 0
    assert "format-name: 2 inputs" in capsys.readouterr().out


def _refuses() -> None:
    raise PackError("refused")


def _endless() -> None:
    while True:
        pass


def _waits() -> None:
    time.sleep(100)


def _dies() -> None:
    os.abort()


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda: 3, "accepted"),
        (_refuses, "refused"),
        (lambda: 1 / 0, "fault"),
        (lambda: len(bytes(700_000_000)), "memory"),
        (_endless, "time"),
        (_waits, "hang"),
        (_dies, "crash"),
    ],
)
def test_every_end_of_a_bounded_child_has_its_name(call, status: str) -> None:
    assert (
        run_bounded(call, cpu_seconds=0, wall_seconds=30 if status == "time" else 3 if status == "hang" else 60).status
        == status
    )


def test_growth_and_opened_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    def call() -> int:
        kept = bytearray(60_000_000)
        kept[::4096] = b"x" * len(kept[::4096])
        return len((tmp_path / "file").read_text()) + len(kept)

    outcome = run_bounded(call)
    assert outcome.value == 60_000_001
    assert 50_000_000 < outcome.grown_nbytes < 120_000_000
    assert str(tmp_path / "file") in outcome.opened
