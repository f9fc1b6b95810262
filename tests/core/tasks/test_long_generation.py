"""Long generation: known continuations, and where a text leaves them (R49)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.digest import sha256_json
from kvassay.core.tasks.long_generation import LONG_KINDS, Followed, followed, long_prompt

GOLDEN = {"counting": "4114a7904293d7bc", "table-copy": "c899ebe23970cb81"}


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_r49_a_continuation_is_as_long_as_wanted_and_follows_from_the_prompt(kind) -> None:
    prompt = long_prompt(kind, 7, 3, 200)
    assert len(prompt.lines) == 200
    assert prompt.lines[:10] == long_prompt(kind, 7, 3, 10).lines
    if kind == "table-copy":
        assert prompt.prompt == f"The table:\n\n{prompt.expected}\nThe same table again:\n\n"
    else:
        shown = prompt.prompt.split("\n\n")[1].splitlines()
        counted = [int(line.split()[1]) for line in (*shown, *prompt.lines)]
        assert len({later - sooner for sooner, later in pairwise(counted)}) == 1


@pytest.mark.parametrize("kind", LONG_KINDS)
def test_prompts_are_the_same_on_every_machine(kind) -> None:
    found = [long_prompt(kind, 7, index, 20) for index in range(3)]
    assert sha256_json([[one.id, one.prompt, one.expected] for one in found])[:16] == GOLDEN[kind]


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.integers(1, 30), st.data())
def test_r51_the_first_divergence_is_where_the_text_was_changed(kind, lines, data) -> None:
    prompt = long_prompt(kind, 1, 0, lines)
    place = data.draw(st.integers(0, len(prompt.expected) - 2))
    text = prompt.expected[:place] + "~" + data.draw(st.text())
    found = followed(prompt, text)
    assert found == Followed(prompt.expected[:place].count("\n"), place, False)


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.integers(1, 30), st.text())
def test_a_whole_text_is_valid_whatever_follows(kind, lines, after) -> None:
    prompt = long_prompt(kind, 1, 0, lines)
    assert followed(prompt, prompt.expected + after) == Followed(lines, None, True)
    assert followed(prompt, prompt.expected.removesuffix("\n")) == Followed(lines, None, True)


@settings(deadline=None)
@given(st.sampled_from(LONG_KINDS), st.data())
def test_a_text_that_stops_early_is_right_as_far_as_it_goes(kind, data) -> None:
    prompt = long_prompt(kind, 1, 0, 12)
    place = data.draw(st.integers(0, len(prompt.expected) - 2))
    text = prompt.expected[:place]
    assert followed(prompt, text) == Followed(text.count("\n"), None, False)


def test_a_number_that_goes_on_is_not_the_number() -> None:
    prompt = long_prompt("counting", 1, 0, 2)
    found = followed(prompt, prompt.expected.removesuffix("\n") + "0")
    assert found == Followed(1, len(prompt.expected) - 1, False)


@pytest.mark.parametrize(("kind", "lines"), [("singing", 3), ("counting", 0)])
def test_what_cannot_be_made(kind, lines) -> None:
    with pytest.raises(ValueError, match="expected one of counting, table-copy with 1 or more"):
        long_prompt(kind, 7, 0, lines)
