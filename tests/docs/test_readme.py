"""The README's commands and code are run as written; only what a reader must fill in is filled in."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli.app import app, run

ROOT = Path(__file__).parents[2]
LOGS = {
    "REFERENCE": str(ROOT / "tests" / "golden" / "suite_logs" / "samples_words_choice_f32.jsonl"),
    "CANDIDATE": str(ROOT / "tests" / "golden" / "suite_logs" / "samples_words_choice_kivi-4.jsonl"),
    "NAME": "words_choice",
}
GENERATED = ROOT / "docs" / "reference" / "cli.md"  # by a build of the site, where there was one
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {GENERATED})]
MATRIX = """
schema = "kvassay.matrix/1"
name = "readme"
models = ["{model}"]
formats = ["int8-token-head"]
workloads = ["contracts/demo.toml"]
"""


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def shell_commands(path: Path) -> list[str]:
    """Lines of console blocks that a reader types: all of them, or those after `$` where a block shows output too."""
    commands = []
    for block in blocks(path, "console"):
        lines = block.splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
        commands += [line.split("  #")[0].strip() for line in typed if line.strip()]
    return commands


def kvassay_commands(path: Path) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in shell_commands(path) if line.startswith("kvassay ")]


def test_every_make_target_that_documents_name_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"`?make ([a-z]+)\b", path.read_text())}
    named -= {"sure", "it", "a", "the", "no"}
    assert {"demo", "test", "quick"} <= named <= targets


def test_every_command_is_documented() -> None:
    shown = {arguments[0] for arguments in kvassay_commands(ROOT / "README.md")}
    commands = {name for name in app if not name.startswith("-")}
    assert commands == shown


def test_every_command_of_a_command_is_documented() -> None:
    shown = {tuple(arguments[:2]) for arguments in kvassay_commands(ROOT / "README.md")}
    below = {(name, each) for name in app if not name.startswith("-") for each in app[name] if not each.startswith("-")}
    assert {("scales", "show"), ("contract", "init"), ("formats", "show")} <= below
    assert below <= shown


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_readme_commands_run_as_written(tiny_folder, contract_toml, tmp_path, monkeypatch, capsys) -> None:
    """In the README's order, in one folder, on a tiny model under a contract for it."""
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "demo.toml").write_text(contract_toml)
    (tmp_path / "matrix.toml").write_text(MATRIX.format(model=tiny_folder))
    monkeypatch.chdir(tmp_path)
    root = ""
    for arguments in kvassay_commands(ROOT / "README.md"):
        if arguments[0] == "lab":
            continue  # it serves until it is interrupted; tests/lab runs it
        model = {"path/to/model": str(tiny_folder), "smollm2-135m": str(tiny_folder), "ROOT": root}
        filled = [{**model, **LOGS}.get(argument, argument) for argument in arguments]
        code = run(filled)
        captured = capsys.readouterr()
        judging = arguments[0] in ("assess", "find", "judge", "judge-logs", "merge")
        assert code in ((0, 1, 3) if judging else (0,)), (arguments, captured.err)
        if "evidence" in filled and arguments[0] == "assess":
            root = json.loads((tmp_path / "evidence" / "manifest.json").read_text())["root"]
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "experiment").is_dir()


def test_readme_python_runs_as_written(tiny_folder, tmp_path) -> None:
    code = "\n".join(blocks(ROOT / "README.md", "python")).replace("path/to/model", str(tiny_folder))
    command = [sys.executable, "-W", "error::FutureWarning", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stored, sixteen = (int(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]{3,}", done.stdout))
    assert 0 < stored < 0.6 * sixteen


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documented_kvassay_commands_parse(path, capsys) -> None:
    for arguments in kvassay_commands(path):
        app.parse_args(arguments, exit_on_error=False, print_error=False)
