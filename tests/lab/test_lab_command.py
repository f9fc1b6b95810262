"""`kvassay lab` as a process: its address, its answers, its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvassay.cli.app import run

WITHOUT_FASTAPI = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in ("fastapi", "uvicorn") else real(name, *rest)
from kvassay.cli import main
main(["lab"])
"""


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process that does not outlive a failed test."""
    command = [sys.executable, "-m", "kvassay", "lab", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        try:
            yield lab
        finally:
            lab.kill()


def test_the_command_prints_its_address_serves_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    with started("--packs", str(tmp_path), "--view", "bytes?key_bits=4") as lab:
        assert lab.stdout is not None
        address, _, view = lab.stdout.readline().removeprefix("lab ").strip().partition("#")
        assert view == "bytes?key_bits=4"
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=300) as page:
            assert b"kvassay lab" in page.read()
        lab.send_signal(signal.SIGINT)
        rest, told = lab.communicate(timeout=300)
    assert lab.returncode == 0, told
    assert (rest, "Traceback" in told) == ("", False)


def test_json_gives_the_address_before_the_command_ends(tmp_path: Path) -> None:
    with started("--packs", str(tmp_path), "--json") as lab:
        assert lab.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = lab.stdout.readline()
            assert line, "the command ended before it printed its address"
            text += line
        assert json.loads(text)["address"].startswith("http://127.0.0.1:")
        urllib.request.urlopen(json.loads(text)["address"], timeout=300).close()  # it serves, so it takes signals
        lab.send_signal(signal.SIGINT)
        assert lab.wait(300) == 0


def test_a_folder_that_is_none_and_a_missing_extra_are_one_line_each(tmp_path: Path, capsys) -> None:
    assert run(["lab", "--packs", str(tmp_path / "none")]) == 2
    assert "is no folder; --packs names" in capsys.readouterr().err
    done = subprocess.run([sys.executable, "-c", WITHOUT_FASTAPI], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("install the extra: pip install 'kvassay[lab]'")


@pytest.mark.parametrize("port", ["70000", "-1", "8080.5"])
def test_a_port_that_is_none_is_refused(port: str, tmp_path: Path, capsys) -> None:
    assert run(["lab", "--packs", str(tmp_path), f"--port={port}"]) == 2
    assert "kvassay: error: " in (error := capsys.readouterr().err)
    assert "--port" in error
