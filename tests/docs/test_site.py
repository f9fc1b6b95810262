"""The documentation site: it builds without a warning, and the tutorial runs as written, on a tiny model."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import kvassay
from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.pack.reader import read_pack
from kvassay.stats.binary import paired_noninferiority
from tests.docs.test_readme import ROOT, blocks, kvassay_commands

TUTORIAL = ROOT / "docs" / "tutorial.md"
EXPERIMENT = ROOT / "docs" / "explanation" / "int8-bytes-and-error.md"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_no_other_host(tmp_path) -> None:
    out = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    for page in ("index", "tutorial", "explanation/what-this-proves", "reference/cli", "reference/python"):
        text = (out / f"{page}.html").read_text()
        assert 'src="http' not in text
        assert 'rel="stylesheet" href="http' not in text
    assert "kvassay assess" in (out / "reference" / "cli.html").read_text()
    assert "kvassay.QuantizedCache" in (out / "reference" / "python.html").read_text()


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tiny_folder, texts, tmp_path, monkeypatch, capsys) -> None:
    """Own texts stand in for the corpus, which has long documents for a tiny model's tokens of one byte."""
    (toml,) = blocks(TUTORIAL, "toml")
    toml = toml.replace("[text]\n", f'[text]\ncorpus = "path:{texts}"\n')
    assert parse_contract(toml).name == "first"
    (tmp_path / "first.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    for arguments in kvassay_commands(TUTORIAL):
        code = run([str(tiny_folder) if argument == "path/to/model" else argument for argument in arguments])
        verdict = arguments[0] in ("assess", "judge", "doctor")
        assert code in ((0, 1, 3) if verdict else (0,)), (arguments, capsys.readouterr().err)
    assert [arm.name for arm in read_pack(tmp_path / "evidence").arms][:2] == ["int8-token-head", "kivi-4,recent=16"]
    assert (tmp_path / "ours.toml").exists()
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("path", [TUTORIAL, *sorted((ROOT / "contracts").glob("*.toml"))], ids=lambda path: path.stem)
def test_every_task_that_is_shown_can_be_met_where_nothing_is_lost(path) -> None:
    toml = path.read_text() if path.suffix == ".toml" else blocks(path, "toml")[0]
    contract = parse_contract(toml)
    for name, bound in contract.task.items():
        nothing_lost = paired_noninferiority(bound.items, 0, 0, bound.margin, contract.inference.alpha)
        assert nothing_lost.lower > -bound.margin, f"{name}: {bound.items} items are too few"


def test_the_python_of_the_tutorial_runs(tiny_folder, tmp_path) -> None:
    (code,) = blocks(TUTORIAL, "python")
    command = [sys.executable, "-c", code.replace("path/to/model", str(tiny_folder))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "bytes, where 16 bits would take" in done.stdout


def test_the_commands_of_the_experiment_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [run(arguments) for arguments in kvassay_commands(EXPERIMENT)] == [0, 0]


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    folders = {path.parent.name for path in (ROOT / "docs").rglob("*.md")} - {"docs"}
    assert all(f"{folder}/*" in index for folder in folders), "a folder of pages without a table of contents"


def test_the_reference_names_all_that_the_package_offers() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert set(re.findall(r"auto(?:class|function):: (\w+)", page)) == set(kvassay.__all__)
