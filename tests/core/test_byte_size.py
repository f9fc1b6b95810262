"""Sizes on the command line: exact where written, refused where two readings exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.byte_size import UNIT_NBYTES, parse_nbytes
from kvassay.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 * 1024**3),
        ("4 GB", 4 * 1000**3),
        ("1.5MiB", 1572864),
        ("0.1kB", 100),
        ("1000000 bytes", 1000000),
        ("7B", 7),
        ("999999999999999999TiB", 999999999999999999 * 2**40),
    ],
)
def test_r31_a_size_is_exact(text, nbytes) -> None:
    assert parse_nbytes(text) == nbytes


@given(st.integers(1, 10**18 - 1), st.sampled_from(sorted(UNIT_NBYTES)))
def test_r31_whole_numbers_of_every_unit_multiply(number, unit) -> None:
    assert parse_nbytes(f"{number}{unit}") == number * UNIT_NBYTES[unit]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4", "has no unit; write 4GiB"),
        ("4G", "has the unit 'G'; write 4GiB"),
        ("4gib", "has the unit 'gib'; write 4GiB"),
        ("4Gb", "has the unit 'Gb'"),
        ("4gb", "write 4GiB (x 1,073,741,824), 4GB (x 1,000,000,000) or 4B"),
        ("4MIB", "write 4MiB"),
        ("0GiB", "less than one byte"),
        ("0.0000009MiB", "less than one byte"),
        ("-4GiB", "is not a number with a unit"),
        ("GiB", "is not a number with a unit"),
        ("", "is not a number with a unit"),
        ("4e3MiB", "is not a number with a unit"),
        ("1,5GiB", "is not a number with a unit"),
        ("nanGiB", "is not a number with a unit"),
        ("infGiB", "is not a number with a unit"),
        ("٤GiB", "is not a number with a unit"),
        ("4\nGiB", "is not a number with a unit"),
        ("9" * 400 + "GiB", "is not a number with a unit"),
    ],
)
def test_r31_what_could_be_read_in_two_ways_is_refused_with_what_to_write(text, message) -> None:
    with pytest.raises(UsageError) as caught:
        parse_nbytes(text, "--budget")
    assert message in str(caught.value)
    assert str(caught.value).startswith("--budget ")
    assert len(str(caught.value)) < 300
