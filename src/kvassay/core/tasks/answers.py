"""Scores of answers that a model wrote by itself: whether the text can be read at all, apart from whether it is right.

Answers are hostile text: a parser here gives None for what it cannot read, and never raises.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, cast

MAX_ANSWER_CHARACTERS = 1 << 16


class GeneratedScore(NamedTuple):
    parses: bool | None
    """Whether the answer has the form that is asked for; None where any text has."""
    right: bool


def begins_with(expected: str, answer: str) -> GeneratedScore:
    """Right if the text begins with the answer and the answer ends there: 1234 is not said by 12345."""
    text = answer.lstrip()
    rest = text[len(expected) :]
    return GeneratedScore(None, text.startswith(expected) and not rest[:1].isalnum())


def scored_line(expected: str, answer: str) -> GeneratedScore:
    """Right if the first line is the answer: of a chain, more or fewer steps are another answer."""
    return GeneratedScore(None, answer.lstrip().partition("\n")[0].rstrip() == expected)


def scored_json(expected: str, answer: str) -> GeneratedScore:
    found = parse_json_object(answer)
    return GeneratedScore(found is not None, found is not None and same_json(found, json.loads(expected)))


def scored_tool_call(expected: str, answer: str) -> GeneratedScore:
    found = parse_tool_call(answer)
    return GeneratedScore(found is not None, found is not None and same_json(found, json.loads(expected)))


def parse_json_object(answer: str) -> dict[str, Any] | None:
    """The JSON object with which the text begins, if nothing else stands on its last line; None if there is none.

    Strict as RFC 8259 and beyond: no NaN or Infinity, no name twice in an object, no unpaired surrogate, since two
    readers would read those differently.
    """
    text = answer.lstrip(" \t\r\n")
    if len(text) > MAX_ANSWER_CHARACTERS:
        return None
    try:
        found, end = _DECODER.raw_decode(text)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or text[end:].partition("\n")[0].strip(" \t\r"):
        return None
    return cast(dict[str, Any], found)


def parse_tool_call(answer: str) -> dict[str, Any] | None:
    """`{"name": TEXT, "arguments": {...}}` and nothing else in the object; None for any other text."""
    found = parse_json_object(answer)
    if found is None or set(found) != {"name", "arguments"}:
        return None
    return found if isinstance(found["name"], str) and found["name"] and isinstance(found["arguments"], dict) else None


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON: names in any order; true is not 1, "1" is not 1, and 1.0 is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
