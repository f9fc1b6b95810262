"""The exercise of the source document: all-zero arrays, then one enlarged element."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kvassay.experiments.attention_error import Measurements, exercise_rows
from kvassay.experiments.attention_error_plan import ROW, TENSOR
from kvassay.formats.calibration import UnitScaleWarning


@pytest.fixture(scope="module")
def exercise() -> dict[tuple[object, object], dict]:
    return {(r["start"], r["quantizer"]): r for r in exercise_rows()}


def test_zeros_that_are_meant_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnitScaleWarning)
        assert exercise_rows()


def test_zeros_use_scale_one(exercise: dict) -> None:
    """R98, R70: every scale of an all-zero array is one."""
    assert exercise["zeros", TENSOR]["scales"] == 1
    assert exercise["zeros", ROW]["scales"] == 64
    for name in (TENSOR, ROW):
        assert exercise["zeros", name]["first_scale_before"] == exercise["zeros", name]["last_scale_before"] == 1


def test_one_enlarged_element_of_zeros(exercise: dict) -> None:
    """R99: the one tensor scale changes, and one of 64 row scales."""
    grown = float(np.float32(40 / 127))
    for name, last in ((TENSOR, grown), (ROW, 1.0)):
        r = exercise["zeros", name]
        assert r["scales_changed"] == 1
        assert (r["first_scale_after"], r["last_scale_after"]) == (grown, last)
        assert r["rows_with_changed_codes"] == 1


def test_one_enlarged_element_of_live_keys(exercise: dict, measured: Measurements) -> None:
    """R99, R77: a tensor scale touches the resolution of every row, row scales only that of the element's own."""
    tensor, per_row = exercise["seed 7", TENSOR], exercise["seed 7", ROW]
    assert (tensor["scales_changed"], per_row["scales_changed"]) == (1, 1)
    assert (tensor["rows_with_changed_codes"], per_row["rows_with_changed_codes"]) == (64, 1)
    assert tensor["last_scale_after"] > 15 * tensor["last_scale_before"]
    assert per_row["last_scale_after"] == per_row["last_scale_before"]
    assert tensor["first_scale_after"] == per_row["first_scale_after"]
    assert list(exercise.values()) == measured.tables.exercise
