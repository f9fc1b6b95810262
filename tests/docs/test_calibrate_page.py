"""The page on calibration is run as written, on a tiny model and a contract for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.pack.reader import read_pack
from tests.docs.test_readme import ROOT, blocks, kvassay_commands

PAGE = ROOT / "docs" / "howto" / "calibrate.md"


def test_the_python_of_the_page_runs(tiny_folder, tmp_path) -> None:
    (code,) = blocks(PAGE, "python")
    command = [sys.executable, "-W", "error::FutureWarning", "-c", code.replace("path/to/model", str(tiny_folder))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^calibrated\(mse, n=\d+ tokens\)$", done.stdout, re.MULTILINE)
    assert "values beyond the calibrated range" in done.stdout


def test_commands_and_contract_of_the_page_run(tiny_folder, contract_toml, tmp_path, monkeypatch, capsys) -> None:
    (lines,) = blocks(PAGE, "toml")
    toml = contract_toml.replace("[inference]\n", lines).replace('"int8-tensor"', '"int8-tensor", "fp8-e4m3-tensor"')
    assert parse_contract(toml).inference.calibration == "mse"
    (tmp_path / "contract.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    for arguments in kvassay_commands(PAGE):
        filled = [str(tiny_folder) if argument == "path/to/model" else argument for argument in arguments]
        code = run(filled)
        assert code in ((0, 1, 3) if arguments[0] == "assess" else (0,)), capsys.readouterr().err
    sources = {arm.name: arm.scale_source for arm in read_pack(tmp_path / "evidence").arms}
    assert sources["int8-tensor"] == "calibrated(mse, n=144 tokens)"
    assert re.fullmatch(r"checkpoint\(llm-compressor, scales, sha256 [0-9a-f]{12}\)", sources["fp8-e4m3-tensor"])
    assert json.loads((tmp_path / "evidence" / "subject.json").read_text())["scales"]["arms"] == ["fp8-e4m3-tensor"]
