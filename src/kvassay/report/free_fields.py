"""Reading the free JSON objects of a pack: a field that is absent, null or of another kind is not recorded."""

from __future__ import annotations

import json
from typing import Any


def field(value: Any, *path: str) -> Any:
    """The value at `path` in nested objects; None where any step is missing."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def text_at(value: Any, *path: str) -> str | None:
    """Text at `path`; other values as JSON, an empty text as None."""
    found = field(value, *path)
    if found is None or found == "":
        return None
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def number_at(value: Any, *path: str) -> float | int | None:
    found = field(value, *path)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def objects_at(value: Any, *path: str) -> list[dict[str, Any]]:
    """The objects of the list at `path`; an empty list where there is none."""
    found = field(value, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def members_at(value: Any, *path: str) -> dict[str, Any]:
    found = field(value, *path)
    return found if isinstance(found, dict) else {}
