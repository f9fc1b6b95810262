"""What produced a folder: hashes of the source files that were loaded, the commit, the environment."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import kvassay
from kvassay.core.digest import sha256_file

_PACKAGE = Path(kvassay.__file__).resolve().parent
_DISTRIBUTIONS = ("numpy", "torch", "pyarrow", "safetensors", "pydantic", "rfc8785")


class Commit(NamedTuple):
    """The checkout that the running package belongs to; both None for an installed package."""

    sha: str | None
    clean: bool | None
    """False where a file of the package differs from the commit; the source hashes say what really ran."""


def source_hashes() -> dict[str, str]:
    """SHA-256 of every source file of this package that is loaded now, by path from the package's parent."""
    files = {
        Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (name == "kvassay" or name.startswith("kvassay.")) and (file := getattr(module, "__file__", None))
    }
    return {path.relative_to(_PACKAGE.parent).as_posix(): sha256_file(path) for path in sorted(files)}


def installed_hash(name: str) -> str | None:
    """SHA-256 of the installed source file `name` (`kvassay/errors.py`); None where there is none."""
    path = _PACKAGE.parent / name
    return sha256_file(path) if path.is_file() and _PACKAGE in path.resolve().parents else None


def commit() -> Commit:
    """The git commit, if the package is tracked by a checkout. A repository that merely surrounds an
    installed package (a virtual environment inside a project) does not count."""
    if _git("ls-files", "--error-unmatch", str(_PACKAGE / "errors.py")) is None:
        return Commit(None, None)
    changes = _git("status", "--porcelain", "--", str(_PACKAGE))
    return Commit(_git("rev-parse", "HEAD"), None if changes is None else not changes)


def environment() -> dict[str, str]:
    """Platform, interpreter and packages; no user name, host name or path."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cores": str(os.cpu_count()),
        **{name: metadata.version(name) for name in _DISTRIBUTIONS},
    }


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
