"""Long generation: known continuations, and where a text leaves them (R49)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.digest import sha256_json
from kvassay.core.tasks.kinds import KINDS, TaskDraw, task_draw
from kvassay.core.tasks.long_generation import Followed, followed

LONG_KINDS = tuple(name for name, kind in KINDS.items() if kind.written_only)
GOLDEN = {"counting": "3166f0c8d5a42c77", "table-copy": "7c4d00aa5e618d19"}


def draw_of(kind: str, lines: int, index: int = 0) -> TaskDraw:
    bound = TaskBound.model_validate({"kind": kind, "margin": 0.1, "lines": (lines,)})
    return task_draw("long", bound.settings, 7, index)


def prompt_of(draw: TaskDraw) -> str:
    return draw.script.heading + draw.script.ask


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_r49_a_continuation_is_as_long_as_wanted_and_follows_from_the_prompt(kind) -> None:
    draw = draw_of(kind, 200, 3)
    lines = draw.expected.split("\n")
    assert len(lines) == 200
    assert draw.labels == ("lines=200",)
    assert draw.script.answer == draw.expected, "nothing stands between the question and the answer"
    assert lines[:10] == draw_of(kind, 10, 3).expected.split("\n")
    if kind == "table-copy":
        assert prompt_of(draw) == f"The table:\n\n{draw.expected}\n\nThe same table again:\n\n"
    else:
        shown = prompt_of(draw).split("\n\n")[1].splitlines()
        counted = [int(line.split()[1]) for line in (*shown, *lines)]
        assert len({later - sooner for sooner, later in pairwise(counted)}) == 1


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_items_are_the_same_on_every_machine(kind) -> None:
    found = [draw_of(kind, 20, index) for index in range(3)]
    assert sha256_json([[one.id, prompt_of(one), one.expected] for one in found])[:16] == GOLDEN[kind]


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.integers(1, 30), st.data())
def test_r51_the_first_divergence_is_where_the_text_was_changed(kind, lines, data) -> None:
    expected = draw_of(kind, lines).expected
    place = data.draw(st.integers(0, len(expected) - 1))
    text = expected[:place] + "~" + data.draw(st.text())
    assert followed(expected, text) == Followed(expected[:place].count("\n"), place, False)
    assert KINDS[kind].form.right_lines(expected, text) == expected[:place].count("\n")


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.integers(1, 30), st.text())
def test_a_whole_text_is_valid_whatever_follows(kind, lines, after) -> None:
    expected = draw_of(kind, lines).expected
    assert followed(expected, f"{expected}\n{after}") == Followed(lines, None, True)
    assert followed(expected, expected) == Followed(lines, None, True)
    form = KINDS[kind].form
    assert form.ended(expected, f"{expected}\n{after}")
    assert not form.ended(expected, expected)
    assert form.same(expected, expected, f"{expected}\n{after}")


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.data())
def test_a_text_that_stops_early_is_right_as_far_as_it_goes(kind, data) -> None:
    expected = draw_of(kind, 12).expected
    text = expected[: data.draw(st.integers(0, len(expected) - 1))]
    assert followed(expected, text) == Followed(text.count("\n"), None, False)


def test_a_number_that_goes_on_is_not_the_number() -> None:
    expected = draw_of("counting", 2).expected
    assert followed(expected, expected + "0") == Followed(1, len(expected), False)
