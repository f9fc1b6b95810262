"""Keeping what commands write out of result folders, which hold the files of their manifest and no other."""

from __future__ import annotations

import os
from pathlib import Path

from kvassay.errors import PackError
from kvassay.pack.manifest import MANIFEST_NAME, MAX_MANIFEST_NBYTES, schema_of
from kvassay.pack.plain_files import MAX_DEPTH, read_plain
from kvassay.pack.strict_json import parse_json


def refuse_inside_result(path: Path) -> None:
    """Raise PackError where `path` would lie in a pack or experiment: the folder would not verify any more."""
    parent = Path(os.path.realpath(Path(os.path.abspath(path)).parent))
    for folder in (parent, *parent.parents)[: MAX_DEPTH + 1]:
        if _is_result(folder):
            raise PackError(
                f"{str(path)!r} would lie in the result folder {str(folder)!r}, which holds what its run wrote and "
                "nothing else; give a path outside of it"
            )


def _is_result(folder: Path) -> bool:
    try:
        if not (folder / MANIFEST_NAME).is_file():
            return False
        return schema_of(parse_json(read_plain(folder, MANIFEST_NAME, MAX_MANIFEST_NBYTES), MANIFEST_NAME)).startswith(
            "kvassay."
        )
    except (PackError, OSError):
        return False  # somebody else's file of that name
