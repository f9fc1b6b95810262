"""The 36 rows and the variants: figures of the source document, golden values, product against NumPy."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from kvassay.experiments.attention_error import Measurements
from kvassay.experiments.attention_error_inputs import draw_inputs
from kvassay.experiments.attention_error_plan import (
    CELLS,
    CHANNEL_KEYS,
    EXACT_OUTLIER_ROW,
    INPUTS,
    LENGTHS,
    MEASURE_COLUMNS,
    NORMAL,
    OUTLIER,
    QUANTIZERS,
    ROW,
    ROW_COLUMNS,
    SEEDS,
    SIDES,
    STALE_SCALE,
    TENSOR,
    VARIANT_COLUMNS,
    VARIANTS,
    Cell,
)
from kvassay.experiments.audit_recompute import expected_side
from kvassay.experiments.audit_reference import inputs_of, measure
from tests.experiments.conftest import Find

GOLDEN = Path(__file__).parents[1] / "golden" / "attention_error_rows.json"
OUTLIER_CELLS = [cell for cell in CELLS if cell.input == OUTLIER]
EACH_OUTLIER_CELL = pytest.mark.parametrize("cell", OUTLIER_CELLS, ids=lambda cell: cell.name)


def test_the_matrix_is_three_by_three_by_two_by_two(measured: Measurements) -> None:
    """R90, R94: 36 rows, each once, every column of the plan in each."""
    keys = [(r["seed"], r["n_tokens"], r["input"], r["quantizer"]) for r in measured.tables.rows]
    assert keys == list(itertools.product((7, 19, 41), (64, 256, 1024), INPUTS, QUANTIZERS))
    assert len(keys) == 36
    assert all(list(r) == list(ROW_COLUMNS) for r in measured.tables.rows)
    assert all(list(r) == list(VARIANT_COLUMNS) for r in measured.tables.variants)


@pytest.mark.parametrize(
    ("kind", "quantizer", "expected"),
    [(NORMAL, TENSOR, 0.00437), (NORMAL, ROW, 0.00247), (OUTLIER, TENSOR, 0.04396), (OUTLIER, ROW, 0.04295)],
)
def test_seed_7_length_256(row: Find, kind: str, quantizer: str, expected: float) -> None:
    """R91: the four figures that the document prints, to its last digit."""
    assert round(row(7, 256, kind, quantizer)["output_max_abs"], 5) == expected


def test_worst_cell(measured: Measurements) -> None:
    """R92: 4.136, at seed 41, N = 1024, 40x, one scale a row."""
    worst = max(measured.tables.rows, key=lambda r: r["output_max_abs"])
    assert (worst["seed"], worst["n_tokens"], worst["input"], worst["quantizer"]) == (41, 1024, OUTLIER, ROW)
    assert worst["output_max_abs"] == pytest.approx(4.135626882818428, abs=1e-12)


def test_all_rows_equal_golden(measured: Measurements) -> None:
    """R90: error columns of all 36 rows, which another BLAS or platform must meet to 1e-9."""
    golden = json.loads(GOLDEN.read_text())["rows"]
    assert len(golden) == len(measured.tables.rows) == 36
    for found, expected in zip(measured.tables.rows, golden, strict=True):
        for column, value in expected.items():
            if isinstance(value, float):
                assert found[column] == pytest.approx(value, abs=1e-9), (column, expected)
            else:
                assert found[column] == value


def test_product_rows_equal_numpy_rows(measured: Measurements) -> None:
    """The product's codecs and torch attention against NumPy from the seeds alone, every column, to 1e-12."""
    compared = 0
    for found in (*measured.tables.rows, *measured.tables.variants):
        cell = Cell(found["seed"], found["n_tokens"], found["input"])
        inputs, normal = inputs_of(cell), inputs_of(cell._replace(input=NORMAL))
        name = str(found.get("quantizer") or found["variant"])
        keys, values = (expected_side(name, s, getattr(inputs, s), getattr(normal, s)) for s in SIDES)
        expected = measure(inputs, keys.side, values.side, keys.ideal, values.ideal)
        assert set(expected) == set(MEASURE_COLUMNS)
        for column, value in expected.items():
            if isinstance(value, float):
                assert found[column] == pytest.approx(value, rel=1e-12, abs=1e-12), (name, cell, column)
            else:
                assert found[column] == value, (name, cell, column)
        compared += 1
    assert compared == 36 + 27


def test_codes_of_the_product_equal_numpy(measured: Measurements) -> None:
    """R67 to R72 on the real arrays: codes and scales of all 63 stored pairs bit for bit."""
    for cell, tensors in measured.arrays.items():
        inputs, normal = inputs_of(cell), inputs_of(cell._replace(input=NORMAL))
        for name in (*QUANTIZERS, *(VARIANTS if cell.input == OUTLIER else ())):
            for side in SIDES:
                expected = expected_side(name, side, getattr(inputs, side), getattr(normal, side)).side
                np.testing.assert_array_equal(tensors[f"{name}.{side}.codes"].numpy(), expected.codes)
                np.testing.assert_array_equal(tensors[f"{name}.{side}.scales"].numpy(), expected.scales)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_outlier_is_a_switch_on_one_element(seed: int) -> None:
    """R79: element [0, 0] of K and V times 40, nothing else, and the draws that follow are not disturbed."""
    drawn = draw_inputs(seed)
    for n_tokens in LENGTHS:
        normal, outlier = drawn[Cell(seed, n_tokens, NORMAL)], drawn[Cell(seed, n_tokens, OUTLIER)]
        np.testing.assert_array_equal(normal.queries, outlier.queries)
        for side in SIDES:
            changed = np.argwhere(getattr(normal, side) != getattr(outlier, side))
            assert changed.tolist() == [[0, 0]]
            assert getattr(outlier, side)[0, 0] == 40 * getattr(normal, side)[0, 0]
    stream = np.random.default_rng(seed).standard_normal(sum((8 + 2 * n) * 32 for n in LENGTHS))
    parts = [getattr(drawn[Cell(seed, n, NORMAL)], name) for n in LENGTHS for name in ("queries", *SIDES)]
    np.testing.assert_array_equal(np.concatenate([part.ravel() for part in parts]), stream)


@EACH_OUTLIER_CELL
def test_a_row_scale_isolates_other_rows(measured: Measurements, cell: Cell) -> None:
    """R77: with one scale a row, every row but the outlier's is stored as without the outlier; with one a tensor
    the outlier changes the resolution of all."""
    with_it, without = measured.arrays[cell], measured.arrays[cell._replace(input=NORMAL)]
    for side in SIDES:
        for part in ("codes", "scales"):
            assert torch.equal(with_it[f"{ROW}.{side}.{part}"][1:], without[f"{ROW}.{side}.{part}"][1:])
        coarser = with_it[f"{TENSOR}.{side}.scales"] / without[f"{TENSOR}.{side}.scales"]
        assert coarser.item() > 2
        zeroed = (with_it[f"{TENSOR}.{side}.codes"][1:] == 0).double().mean()
        assert zeroed > 2 * (without[f"{TENSOR}.{side}.codes"][1:] == 0).double().mean()


@EACH_OUTLIER_CELL
def test_a_row_scale_does_not_isolate_inside_its_row(measured: Measurements, row: Find, cell: Cell) -> None:
    """R78: the outlier's own row has the same codes, scale and error under both quantizers."""
    tensors = measured.arrays[cell]
    for side in SIDES:
        assert torch.equal(tensors[f"{ROW}.{side}.codes"][0], tensors[f"{TENSOR}.{side}.codes"][0])
        assert torch.equal(tensors[f"{ROW}.{side}.scales"][0], tensors[f"{TENSOR}.{side}.scales"][0])
        largest_of_row = row(*cell, ROW)[f"{side}_max_abs"]
        normal = row(*cell._replace(input=NORMAL), ROW)[f"{side}_max_abs"]
        assert largest_of_row > 2.5 * normal


def test_keys_cause_the_worst_error(row: Find) -> None:
    """R7, R81, R82: K alone gives 4.1358, V alone 0.254."""
    worst = row(41, 1024, OUTLIER, ROW)
    assert worst["output_keys_only_max_abs"] == pytest.approx(4.135771250247728, abs=1e-12)
    assert worst["output_values_only_max_abs"] == pytest.approx(0.253909910127457, abs=1e-12)


def test_a_smaller_array_error_with_a_larger_output_error(row: Find) -> None:
    """R83: one scale a row cuts K's RMSE 18-fold and V's 22-fold, and the output error rises from 3.96 to 4.14."""
    tensor, per_row = row(41, 1024, OUTLIER, TENSOR), row(41, 1024, OUTLIER, ROW)
    assert tensor["keys_rmse"] / per_row["keys_rmse"] == pytest.approx(18.081, abs=1e-3)
    assert tensor["values_rmse"] / per_row["values_rmse"] == pytest.approx(21.64, abs=0.01)
    assert tensor["output_max_abs"] == pytest.approx(3.9592395091674604, abs=1e-12)
    assert per_row["output_max_abs"] > tensor["output_max_abs"]
    assert per_row["score_max_abs"] < tensor["score_max_abs"]
    assert per_row["weight_max_abs"] > tensor["weight_max_abs"]


def test_channel_scales_for_keys(variant: Find, row: Find) -> None:
    """R4, R96: K a channel with V a row leaves V's own error, 0.254; in 8 of the 9 cells less than rows for both."""
    assert variant(41, 1024, CHANNEL_KEYS)["output_max_abs"] == pytest.approx(0.253909970819831, abs=1e-12)
    lower = [
        variant(c.seed, c.n_tokens, CHANNEL_KEYS)["output_max_abs"] < row(*c, ROW)["output_max_abs"]
        for c in OUTLIER_CELLS
    ]
    assert sum(lower) == 8
    assert not lower[0], "seed 7, N = 64: 0.12494 against 0.12468"


def test_the_outlier_row_kept_exact(variant: Find) -> None:
    """R27: 0.0155, with the two float32 rows counted: 184 bytes more than codes and scales in their place."""
    kept = variant(41, 1024, EXACT_OUTLIER_ROW)
    # A float64 row in its place gives 0.015479034707844619; float32 is what is stored and counted.
    assert kept["output_max_abs"] == pytest.approx(0.015479034707844619, abs=1e-5)
    assert kept["keys_exact_nbytes"] == kept["values_exact_nbytes"] == 128
    assert kept["stored_nbytes"] == 73_728 + 2 * (128 - 36)


def test_score_weight_and_output_errors_stand_side_by_side(measured: Measurements) -> None:
    """R50, R95: each row has score, weight and output error, absolute and relative to a stated reference."""
    for r in measured.tables.rows:
        assert 0 < r["weight_max_abs"] < 1
        assert r["score_max_abs"] > 0
        assert r["output_rmse"] <= r["output_max_abs"] <= r["output_rmse"] * math.sqrt(8 * 32)
        assert 0 < r["output_relative"] < 0.05
        assert r["reference_max_abs"] > 10 * r["output_max_abs"]


def test_values_only_error_is_bounded_by_the_value_error(measured: Measurements) -> None:
    """R82: V errors enter as a weighted mean, so no output moves by more than the largest error of V."""
    for r in measured.tables.rows:
        assert r["output_values_only_max_abs"] <= r["values_max_abs"]


def test_no_row_clips_and_every_error_is_within_half_a_step(measured: Measurements) -> None:
    """R2, R3, R75, R76: a scale from the array itself clips nothing; the scale's precision is a term of its own."""
    for r in measured.tables.rows:
        for side in SIDES:
            assert r[f"{side}_clipped"] == 0
            assert r[f"{side}_clipping_max_abs"] is None, "absent is not zero"
            assert 0.49 < r[f"{side}_error_steps"] <= 0.5 + 1e-12
            assert 0 < r[f"{side}_scale_precision_max_abs"] < 1e-4 * r[f"{side}_rounding_max_abs"]


def test_a_stale_scale_clips_exactly_the_outliers(measured: Measurements) -> None:
    """R2, R3: a scale calibrated before the outlier came clips one value of K and one of V in each cell; their error
    is reported apart from the rounding error of the others, which the outlier no longer touches."""
    stale = [v for v in measured.tables.variants if v["variant"] == STALE_SCALE]
    assert len(stale) == 9
    for v in stale:
        tensors = measured.arrays[Cell(v["seed"], v["n_tokens"], OUTLIER)]
        for side in SIDES:
            scale = tensors[f"{STALE_SCALE}.{side}.scales"].double()
            element = tensors[side][0, 0]
            assert v[f"{side}_clipped"] == 1
            assert v[f"{side}_clipping_max_abs"] == float(element.abs() - 127 * scale)
            assert v[f"{side}_rounding_max_abs"] <= float(scale) * 0.5 * (1 + 1e-5)
            assert v[f"{side}_clipping_max_abs"] > 50 * v[f"{side}_rounding_max_abs"]
    assert max(v["output_max_abs"] for v in stale) == pytest.approx(89.81, abs=0.005)
