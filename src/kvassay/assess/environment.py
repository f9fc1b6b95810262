"""The record of where and with what a run was made (R34 to R36, R106, R112, R113)."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import kvassay
from kvassay.core.digest import sha256_file
from kvassay.kernels import kernels_text

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "numpy",
    "scipy",
    "pyarrow",
    "pydantic",
    "rfc8785",
)


def environment_record() -> dict[str, Any]:
    """Machine, interpreter, packages and the hashes of the source that runs. Unknown values are None."""
    root = Path(kvassay.__file__).parent
    commit = _git(root, "rev-parse", "HEAD")
    return {
        "kvassay_version": kvassay.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": kernels_text(),
        "memory_nbytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": commit,
        "dirty": None if commit is None else bool(_git(root, "status", "--porcelain", "--", str(root))),
        "source_sha256": {str(path.relative_to(root)): sha256_file(path) for path in sorted(root.rglob("*.py"))},
    }


def peak_rss_nbytes() -> int:
    """High-water mark of this process's resident memory since it began."""
    kibibyte = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kibibyte


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command in the source's checkout; None outside one, or without git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
