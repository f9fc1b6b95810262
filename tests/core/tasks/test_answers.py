"""Scores of written answers: hostile text is read or refused, never raised over."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvassay.core.tasks.answers import (
    MAX_ANSWER_CHARACTERS,
    GeneratedScore,
    begins_with,
    parse_json_object,
    parse_tool_call,
    same_json,
    scored_json,
    scored_tool_call,
)
from kvassay.core.tasks.kinds import KINDS, task_draw
from kvassay.core.tasks.settings import DEPTHS, TaskSettings

RECORD = '{"number": 4821, "colour": "red", "sold": true}'
CALL = '{"name": "tool_4821", "arguments": {"room": "attic", "minutes": 12}}'

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
OBJECTS = st.dictionaries(
    st.text(max_size=6),
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=3),
    max_size=4,
)
HOSTILE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@HOSTILE
@given(OBJECTS, st.sampled_from(["", "\n", "  ", "\nstone: {", "\r\nnext"]), st.sampled_from(["", " ", "\n\t "]))
def test_every_object_that_json_writes_is_read_again(value, after, before) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, ensure_ascii=False)):
        found = parse_json_object(before + text + after)
        assert found is not None
        assert same_json(found, value)
        assert scored_json(json.dumps(value), text) == GeneratedScore(True, True)


@HOSTILE
@given(st.text() | st.text(alphabet='{}[]":,0123456789.eE+-truefalsn\\u \n'))
def test_any_text_has_a_score(text) -> None:
    for kind in KINDS.values():
        score = kind.scored(RECORD, text)
        assert score.right is False or text.lstrip().startswith(RECORD)
        assert not (score.right and score.parses is False)


@HOSTILE
@given(OBJECTS, st.integers(0, 40))
def test_a_cut_object_is_not_read(value, cut) -> None:
    text = json.dumps(value)
    assert parse_json_object(text[: min(cut, len(text) - 1)]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        "4821",
        '"{}"',
        "{} {}",
        "{}x",
        RECORD + " and so on",
        RECORD[:-1],
        "x" + RECORD,
        RECORD.replace('"', "'"),
        RECORD.replace("true", "True"),
        '{"a": 1, "a": 1}',
        '{"b": {"a": 1, "a": 2}}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 01}',
        '{"a": 1,}',
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
        '{"\\udfff": 1}',
        '{"a": "line\nbreak"}',
        '{"a": ' + "[" * 100_000,
        '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"a": ' + "9" * 5_000 + "}",
        '{"a": "' + "x" * MAX_ANSWER_CHARACTERS + '"}',
        "\ufeff" + RECORD,
        "\u00a0" + RECORD,
        "```json\n" + RECORD,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_no_json_object_is_not_read(text) -> None:
    assert parse_json_object(text) is None
    assert scored_json(RECORD, text) == GeneratedScore(False, False)
    assert scored_tool_call(CALL, text) == GeneratedScore(False, False)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (RECORD, True),
        ('{"sold": true, "number": 4821, "colour": "red"}', True),
        (RECORD.replace("4821", "4812"), False),
        (RECORD.replace("4821", "4821.0"), False),
        (RECORD.replace("4821", '"4821"'), False),
        (RECORD.replace("true", "1"), False),
        (RECORD.replace("}", ', "more": null}'), False),
        ("{}", False),
    ],
)
def test_parsing_is_told_apart_from_being_right(text, right) -> None:
    assert scored_json(RECORD, text) == GeneratedScore(True, right)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        RECORD,
        CALL.replace('"name"', '"tool"'),
        CALL.replace('"tool_4821"', "4821"),
        CALL.replace('"tool_4821"', '""'),
        '{"name": "tool_4821", "arguments": ["attic", 12]}',
        '{"name": "tool_4821", "arguments": "attic"}',
        CALL[:-1] + ', "id": 1}',
    ],
)
def test_an_object_that_is_no_call(text) -> None:
    assert parse_json_object(text) is not None
    assert parse_tool_call(text) is None
    assert scored_tool_call(CALL, text) == GeneratedScore(False, False)


@pytest.mark.parametrize(
    ("kind", "answer", "right"),
    [
        ("recall", " 4821", True),
        ("recall", "4821\nstone: 77", True),
        ("recall", "4821.", True),
        ("recall", "48210", False),
        ("recall", "4812", False),
        ("recall", "", False),
        ("variable-tracking", " 4821\n", True),
        ("variable-tracking", " 4821 = 4821", False),
        ("variable-tracking", " 4821.\nB", True),
        ("variable-tracking", " 4821. 4821", False),
        ("arithmetic", "4821, plus 3 is 4824", False),
        ("rare-copy", " 4821. The river", True),
        ("rare-copy", "4821 gypsum", False),
    ],
)
def test_plain_answers_have_no_form_to_miss(kind, answer, right) -> None:
    assert KINDS[kind].scored("4821", answer) == GeneratedScore(None, right)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_true_answer_is_right_for_every_kind(kind) -> None:
    """A generated answer is scored with what the judge knows of an item: no tokenizer, no model."""
    settings = TaskSettings(kind, None, (512,), DEPTHS, ("en",), ("rare",), (2,), (3,), keys=4, values=3, lines=(5,))
    draw = task_draw(kind, settings, 7, 0)
    score = KINDS[kind].scored(draw.expected, draw.script.answer + "\nand more")
    assert score.right
    assert score.parses is (True if kind in ("json", "tool-call") else None)


@pytest.mark.parametrize("rest", ["", ".", ". The", ".The", ", and", "\n", "-", "'", " 5", ") 5"])
def test_an_answer_ends_at_what_ends_a_clause(rest) -> None:
    for answer in ("4821", "amber"):
        assert begins_with(answer, f" {answer}{rest}").right


@pytest.mark.parametrize("rest", ["5", ".5", ",567", "_000", "-22", "/7", ":30", "'000", "’000", "th"])
def test_b06_a_longer_number_does_not_say_the_shorter_one_that_it_begins_with(rest) -> None:
    assert not begins_with("4821", f" 4821{rest}").right
    assert not begins_with("amber", "amber_case").right
