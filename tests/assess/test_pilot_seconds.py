"""What a unit of a level costs, told by the pilot."""

from __future__ import annotations

import pytest

from kvassay.assess.pilot import _seconds_per_unit


def test_the_first_unit_pays_for_what_is_done_once_and_is_left_out() -> None:
    assert _seconds_per_unit([10.0, 19.0, 21.0, 23.0, 25.0], together=False) == pytest.approx(2.0)


def test_units_that_run_together_end_together_so_all_of_them_tell() -> None:
    assert _seconds_per_unit([0.0, 3.9, 4.0, 7.9, 8.0], together=True) == pytest.approx(2.0)


def test_two_units_are_too_few_to_leave_one_out() -> None:
    assert _seconds_per_unit([0.0, 5.0, 8.0], together=False) == pytest.approx(4.0)
    assert _seconds_per_unit([0.0], together=False) == 0.0
