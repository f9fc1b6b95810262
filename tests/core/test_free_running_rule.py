"""Measures of free-running outputs against plain definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.free_running_rule import (
    MAX_TOKEN_ID,
    edit_distance,
    first_divergence,
    ids_text,
    is_empty,
    levenshtein,
    parse_ids,
    repeated_share,
)

few = st.lists(st.integers(0, 3), max_size=90)
"""Few kinds of tokens, so that outputs share much; longer than a machine word."""


def by_dynamic_programming(reference: list[int], candidate: list[int]) -> int:
    """R. Wagner and M. Fischer, J. ACM 21 (1974): the textbook table."""
    above = list(range(len(candidate) + 1))
    for row, one in enumerate(reference, 1):
        current = [row]
        for column, other in enumerate(candidate, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (one != other)))
        above = current
    return above[-1]


@given(few, few)
def test_levenshtein_is_that_of_the_table(reference: list[int], candidate: list[int]) -> None:
    expected = by_dynamic_programming(reference, candidate)
    assert levenshtein(reference, candidate) == expected
    assert levenshtein(candidate, reference) == expected
    assert edit_distance(reference, candidate) == expected / max(1, len(reference), len(candidate))


@given(few, few)
def test_first_divergence_is_the_length_of_the_longest_common_beginning(one: list[int], other: list[int]) -> None:
    at = first_divergence(one, other)
    if at is None:
        assert one == other
        return
    assert one[:at] == other[:at]
    assert one[at : at + 1] != other[at : at + 1]


def test_an_output_that_ends_where_the_other_goes_on_diverges_there() -> None:
    assert first_divergence((5, 6, 2), (5, 6, 7, 8)) == 2
    assert first_divergence((5, 6), (5, 6, 7)) == 2


@given(few)
def test_repetition_counts_what_occurred_before(ids: list[int]) -> None:
    grams = [tuple(ids[start : start + 4]) for start in range(len(ids) - 3)]
    seen_before = sum(gram in grams[:index] for index, gram in enumerate(grams))
    expected = seen_before / len(grams) if len(grams) > 1 else 0.0
    assert repeated_share(ids) == pytest.approx(expected, abs=1e-12)


def test_a_loop_repeats_nearly_all_and_distinct_tokens_nothing() -> None:
    assert repeated_share([1, 2] * 32) == pytest.approx(1 - 2 / 61)
    assert repeated_share(range(64)) == 0
    assert repeated_share([7, 7, 7, 7]) == 0  # one 4-gram cannot repeat


def test_an_output_is_empty_if_nothing_stands_before_its_end() -> None:
    assert is_empty((2,), (2, 9))
    assert is_empty((), (2,))
    assert not is_empty((5, 2), (2,))


@given(st.lists(st.integers(0, MAX_TOKEN_ID), max_size=20))
def test_ids_come_back_from_their_text(ids: list[int]) -> None:
    assert parse_ids(ids_text(ids)) == tuple(ids)


@pytest.mark.parametrize(
    "text", ["01", " 1", "1 ", "1  2", "+1", "-1", "1,2", "1\n2", "1\n", "1.0", "٣", "0x1", "99999999999", "2147483648"]
)
def test_another_spelling_of_ids_is_refused(text: str) -> None:
    """Equal ids must have equal texts, or copies of a prompt could pass for two."""
    with pytest.raises(ValueError, match="found"):
        parse_ids(text)


@given(st.text(max_size=12))
def test_any_text_is_ids_or_a_value_error(text: str) -> None:
    try:
        ids = parse_ids(text)
    except ValueError:
        return
    assert ids_text(ids) == text
