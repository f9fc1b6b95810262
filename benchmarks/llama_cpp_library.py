"""Where llama.cpp's shared library is: the package xllamacpp (MIT) brings it, with ggml inside."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

INSTALL = "pip install --no-deps xllamacpp==2026.10.11549"


def library_path() -> Path:
    """Raises ModuleNotFoundError without the package."""
    found = find_spec("xllamacpp")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"llama.cpp's library is not installed: {INSTALL}")
    return next(Path(found.submodule_search_locations[0]).glob("*.so"))
