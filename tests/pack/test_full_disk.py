"""A full disk is one line that names the path, and nothing half-written stays at the output path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRITE_PACK = """
import os, sys
from pathlib import Path
import numpy as np
from kvassay.core.contract import parse_contract
from kvassay.errors import PackError
from kvassay.pack.writer import PackWriter

TOML = '''
schema = "kvassay.contract/1"
name = "full disk"
[candidates]
order = ["q8_0"]
[fidelity.nll_delta]
max = 0.1
'''

def rows(count):
    noise = np.random.default_rng(0).random(count)  # not compressible
    return {
        "arm": "q8_0", "slice": "all", "document": "d", "position": np.arange(count), "token_id": 1, "kl_nats": noise,
        "reverse_kl_nats": noise, "nll_reference_nats": noise, "nll_candidate_nats": noise, "top1_agrees": True,
        "reference_top1_nats": noise, "top10_overlap": 1.0, "stored_reads": 1,
    }

def main(out, num_rows, text_nbytes):
    try:
        with PackWriter(out, parse_contract(TOML), TOML) as pack:
            pack.write_report("x" * text_nbytes)
            pack.append("tokens", rows(num_rows))
            pack.commit()
    except PackError as error:
        print(error)
        print(os.listdir(out.parent))
"""

LIMITED_FILE_SIZE = (
    WRITE_PACK
    + """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
"""
)


CASES = [(70_000, 0, "rows/tokens.parquet"), (60_000, 0, "rows/tokens.parquet"), (10, 1_100_000, "report.html")]
"""Rows beyond a row group are written while they come, fewer at the end."""


@pytest.mark.parametrize(("num_rows", "text_nbytes", "name"), CASES)
def test_a_file_that_may_not_grow(tmp_path: Path, num_rows: int, text_nbytes: int, name: str) -> None:
    out = tmp_path / "pack"
    run = subprocess.run(
        [sys.executable, "-c", LIMITED_FILE_SIZE, str(out), str(num_rows), str(text_nbytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    message, listing = run.stdout.splitlines()
    assert message == (
        f"'{out}/{name}' cannot be written: the file would be larger than this process may write; "
        "free some or choose another output folder"
    )
    assert listing == "[]"
    assert run.stderr == ""  # nothing tries to finish the file afterwards
    assert os.listdir(tmp_path) == []


def _mounts() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _mounts(), reason="no private mount namespace for a tiny tmpfs")
@pytest.mark.parametrize(("num_rows", "text_nbytes", "name"), CASES)
def test_a_full_file_system(tmp_path: Path, num_rows: int, text_nbytes: int, name: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = tmp_path / "write.py"
    script.write_text(WRITE_PACK + "\nmain(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))\n")
    mount_and_run = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" "$3" "$1/pack" "$4" "$5"'
    arguments = [str(disk), sys.executable, str(script), str(num_rows), str(text_nbytes)]
    run = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", mount_and_run, "sh", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    message, listing = run.stdout.splitlines()
    assert message == (
        f"'{disk}/pack/{name}' cannot be written: no space left on the device; "
        "free some or choose another output folder"
    )
    assert listing == "[]"
    assert run.stderr == ""  # nothing tries to finish the file afterwards
