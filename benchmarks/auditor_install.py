"""What an auditor needs: size of the base install, and the time of `kvassay verify` in it.

    python -m benchmarks.auditor_install PACK [--repeats 5] [--json FILE]

Makes a fresh virtual environment in a temporary folder, installs kvassay from this clone with the versions of
constraints.txt and without any extra (no torch; no kernels are compiled, since verifying needs none; sources are
compiled to byte code when they are first run, `--no-compile`), and runs `kvassay verify PACK` in fresh processes. The
size is taken after those runs. PACK must verify.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_MB = 400
LIMIT_SECONDS = 5.0
_PURE_PYTHON = [
    part
    for setting in ("wheel.cmake=false", "wheel.platlib=false", "wheel.py-api=py3")
    for part in ("--config-settings", setting)
]
"""What pyproject.toml itself falls back to where there is no compiler."""


def installed_nbytes(folder: Path) -> dict[str, int]:
    """Bytes on the disk (blocks, as du counts them) of each package of an environment, largest first."""
    (site,) = folder.glob("lib/python*/site-packages")
    sizes = {entry.name: _nbytes(entry) for entry in site.iterdir()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _nbytes(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(512 * each.stat().st_blocks for each in files)


def install(folder: Path) -> None:
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
    command += ["--no-compile", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *_PURE_PYTHON, str(ROOT)], check=True)


class Seconds(NamedTuple):
    wall: float
    cpu: float
    """User and system; on a busy machine this is what a quiet one would take, and the wall time is not."""


def verify_seconds(folder: Path, pack: Path) -> Seconds:
    """Of one fresh process, start of the interpreter included."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [folder / "bin/kvassay", "verify", str(pack)], capture_output=True, text=True, check=False, env=environment
    )
    took = time.perf_counter() - begin
    if done.returncode != 0:
        raise SystemExit(f"{pack} does not verify: {(done.stdout + done.stderr).splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(took, after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvassay-auditor-") as name:
        folder = Path(name) / "venv"
        install(folder)
        sizes = installed_nbytes(folder)
        verify_seconds(folder, given.pack)  # the first run compiles the sources that it imports
        seconds = [verify_seconds(folder, given.pack) for _ in range(given.repeats)]
        total = _nbytes(folder)
        code = (
            "import importlib.util as u; print([n for n in ('torch', 'transformers', 'vl_convert') if u.find_spec(n)])"
        )
        unwanted = subprocess.run(
            [folder / "bin/python", "-c", code], capture_output=True, text=True, check=True
        ).stdout
    wall, cpu = ([each[which] for each in seconds] for which in range(2))
    median = statistics.median(wall)
    print(f"{total / 1e6:.0f} MB installed (at most {LIMIT_MB}), of which")
    for package, nbytes in list(sizes.items())[:8]:
        print(f"  {nbytes / 1e6:6.1f} MB  {package}")
    for what, taken in (("wall", wall), ("CPU", cpu)):
        spread = f"{min(taken):.2f} to {max(taken):.2f} (n = {len(taken)})"
        print(f"kvassay verify: median {statistics.median(taken):.2f} s {what}, {spread}")
    print(f"not needed and yet there: {unwanted.strip()}")
    if given.json:
        told = {"nbytes": total, "packages": sizes, "verify_seconds": [each._asdict() for each in seconds]}
        given.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0 if total <= LIMIT_MB * 1e6 and median <= LIMIT_SECONDS and unwanted.strip() == "[]" else 1


if __name__ == "__main__":
    sys.exit(main())
