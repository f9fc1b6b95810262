"""The page on the cache is run as written, from its first block to its last, in one process."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.test_readme import ROOT, blocks

PAGE = ROOT / "docs" / "howto" / "cache.md"


def test_the_python_of_the_page_runs_without_a_deprecated_name(tmp_path) -> None:
    code = "\n".join(blocks(PAGE, "python")).replace("/var/tmp", str(tmp_path))
    command = [sys.executable, "-W", "error::FutureWarning", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moved = re.search(r"nbytes_out=(\d+).*nbytes_in=(\d+)", done.stdout)
    assert moved is not None
    assert min(map(int, moved.groups())) > 0, "the limit of the example lets everything stay in memory"
