"""Scores of answers that a model wrote by itself: whether the text can be read at all, apart from whether it is right.

Answers are hostile text: a parser here gives None for what it cannot read, and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from kvassay.core.tasks.long_generation import followed, lines_ended, written_lines

MAX_ANSWER_CHARACTERS = 1 << 16
_WORD_GOES_ON = re.compile(r"\w")
_NUMBER_GOES_ON = re.compile(r"\w|[.,:/'’-]\d")
"""A sign between digits belongs to the number that they write; before a blank or at the end it ends a clause."""


class GeneratedScore(NamedTuple):
    parses: bool | None
    """Whether the answer has the form that is asked for; None where any text has."""
    right: bool


class AnswerForm(NamedTuple):
    """How the written answers of a kind are read. Every function takes the expected answer first, then the text."""

    scored: Callable[[str, str], GeneratedScore]
    ended: Callable[[str, str], bool]
    """Whether the answer is over, so that what a model would write next is no part of it."""
    said: Callable[[str, str], str]
    """What of the text is the answer, in one spelling: two texts of equal answers say the same."""
    right_lines: Callable[[str, str], int] | None = None
    """Lines that are right before the first wrong one; only for answers that are judged line by line."""

    @property
    def can_fail_to_parse(self) -> bool:
        """Whether answers have a form that a text can miss."""
        return self.scored("{}", "").parses is not None

    def same(self, expected: str, one: str, other: str) -> bool:
        """Whether two texts are equal as answers, right or wrong."""
        if self.scored(expected, one).right and self.scored(expected, other).right:
            return True
        return self.said(expected, one) == self.said(expected, other)


def begins_with(expected: str, answer: str) -> GeneratedScore:
    """Right if the text begins with the answer and the answer ends there: 12 is not said by 123, 12.3 or 12,345."""
    text = answer.lstrip()
    goes_on = _NUMBER_GOES_ON if expected[-1:].isdecimal() else _WORD_GOES_ON
    return GeneratedScore(None, text.startswith(expected) and goes_on.match(text, len(expected)) is None)


def scored_sentence(expected: str, answer: str) -> GeneratedScore:
    """Right if the first sentence is the answer; a full stop ends it, as in the text from which it is given again."""
    return GeneratedScore(None, _sentence(answer) == expected)


def scored_line(expected: str, answer: str) -> GeneratedScore:
    """Right if the first line is the answer, but for a full stop at its end: for answers of several sentences."""
    return GeneratedScore(None, _line(answer) == expected)


def _line(answer: str) -> str:
    return answer.lstrip().partition("\n")[0].rstrip().removesuffix(".")


def _line_said(expected: str, answer: str) -> str:
    return _line(answer)


def _line_ended(expected: str, answer: str) -> bool:
    return "\n" in answer.lstrip()


def _sentence(answer: str) -> str:
    return answer.lstrip().partition("\n")[0].partition(".")[0].rstrip()


def _sentence_said(expected: str, answer: str) -> str:
    return _sentence(answer)


def _sentence_ended(expected: str, answer: str) -> bool:
    text = answer.lstrip()
    return "\n" in text or "." in text


def scored_json(expected: str, answer: str) -> GeneratedScore:
    found = parse_json_object(answer)
    return GeneratedScore(found is not None, found is not None and same_json(found, json.loads(expected)))


def scored_tool_call(expected: str, answer: str) -> GeneratedScore:
    found = parse_tool_call(answer)
    return GeneratedScore(found is not None, found is not None and same_json(found, json.loads(expected)))


def _json_ended(expected: str, answer: str) -> bool:
    """With the object, whatever stands behind it, or with the line of a text that is none."""
    text = answer.lstrip()
    if not text.startswith("{"):
        return "\n" in text
    return _json_value(answer) is not None


def _json_said(expected: str, answer: str) -> str:
    found = parse_json_object(answer)
    return answer.strip() if found is None else _canonical(found)


def _scored_lines(expected: str, answer: str) -> GeneratedScore:
    return GeneratedScore(None, followed(expected, answer).valid)


def _right_lines(expected: str, answer: str) -> int:
    return followed(expected, answer).right_lines


def parse_json_object(answer: str) -> dict[str, Any] | None:
    """The JSON object with which the text begins, if nothing else stands on its last line; None if there is none.

    Strict as RFC 8259 and beyond: no NaN or Infinity, no name twice in an object, no unpaired surrogate, since two
    readers would read those differently.
    """
    read = _json_value(answer)
    if read is None or read.rest.partition("\n")[0].strip(" \t\r"):
        return None
    value: Any = read.value
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def parse_tool_call(answer: str) -> dict[str, Any] | None:
    """`{"name": TEXT, "arguments": {...}}` and nothing else in the object; None for any other text."""
    found = parse_json_object(answer)
    if found is None or set(found) != {"name", "arguments"}:
        return None
    return found if isinstance(found["name"], str) and found["name"] and isinstance(found["arguments"], dict) else None


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON: names in any order; true is not 1, "1" is not 1, and 1.0 is not 1."""
    return _canonical(one) == _canonical(other)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class _Read(NamedTuple):
    value: Any
    rest: str
    """The text behind it."""


def _json_value(answer: str) -> _Read | None:
    """The JSON value with which the text begins."""
    text = answer.lstrip(" \t\r\n")
    if len(text) > MAX_ANSWER_CHARACTERS:
        return None
    try:
        found, end = _DECODER.raw_decode(text)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return _Read(found, text[end:])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)

PREFIX = AnswerForm(begins_with, _sentence_ended, _sentence_said)
SENTENCE = AnswerForm(scored_sentence, _sentence_ended, _sentence_said)
LINE = AnswerForm(scored_line, _line_ended, _line_said)
JSON_OBJECT = AnswerForm(scored_json, _json_ended, _json_said)
TOOL_CALL = AnswerForm(scored_tool_call, _json_ended, _json_said)
LINES = AnswerForm(_scored_lines, lines_ended, written_lines, _right_lines)
