"""A machine without a C++ compiler: the package installs from its sources, runs a judgement, says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("scikit_build_core", reason="what builds the package is not installed")


_WITHOUT_EDITABLE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")]
"""
"""The editable install of these tests finds its own compiled module wherever the package is imported from."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as pip builds and installs it where CMake is there and no compiler."""
    folder = tmp_path_factory.mktemp("without-compiler")
    tools = folder / "bin"
    tools.mkdir()
    for name in ("cmake", "ninja", "make"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    source = folder / "source"
    source.mkdir()
    for name in ("native", "src"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for stray in source.rglob("_native*.so"):
        stray.unlink()  # of an editable install
    environment = {**os.environ, "PATH": str(tools), "CC": "/bin/false", "CXX": "/bin/false"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = wheels.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    (folder / "site" / "sitecustomize.py").write_text(_WITHOUT_EDITABLE)
    return folder / "site"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=installed, check=False
    )


@pytest.mark.slow
def test_the_first_cache_says_that_nothing_is_compiled(installed) -> None:
    code = (
        "import kvassay, torch; from transformers import LlamaConfig; print(kvassay.__file__);"
        "config = LlamaConfig(vocab_size=8, hidden_size=64, num_hidden_layers=1, num_attention_heads=1);"
        "config._attn_implementation = 'sdpa';"
        "cache = kvassay.QuantizedCache(config, 'int4-g64'); kvassay.QuantizedCache(config, 'int4-g64');"
        "print(cache.explain()[0].next.value)"
    )
    done = run(installed, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(installed / "kvassay/__init__.py"), "tiled (torch)"]
    assert done.stderr.count("kernels: none, attention reads pages in torch; kvassay was installed without") == 1
    assert "install g++" in done.stderr


@pytest.mark.slow
def test_a_judgement_runs_and_doctor_evidence_and_report_say_so(
    installed, tiny_folder, contract_toml, tmp_path
) -> None:
    said = "none, attention reads pages in torch; kvassay was installed without its compiled module"
    doctor = run(installed, "-m", "kvassay", "doctor", str(tiny_folder))
    assert f"kernels: {said}" in doctor.stdout, doctor.stdout + doctor.stderr
    contract = tmp_path / "contract.toml"
    contract.write_text(contract_toml)
    pack = tmp_path / "evidence"
    done = run(installed, "-m", "kvassay", "assess", str(tiny_folder), "--contract", str(contract), "--out", str(pack))
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr  # an answer, whichever
    assert json.loads((pack / "environment.json").read_text())["kernels"].startswith(said)
    assert said in (pack / "report.html").read_text()
