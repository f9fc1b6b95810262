"""The byte table: summed from real arrays, against the source document and the core's own prediction."""

from __future__ import annotations

import pytest

from kvassay.core.format_names import parse_format
from kvassay.core.layout import static_nbytes, streams
from kvassay.experiments.attention_error import Measurements
from kvassay.experiments.attention_error_plan import NORMAL, ROW, TENSOR, VARIANTS, Cell, variant_format

DOCUMENT = {64: (16_384, 4_104, 4_608), 256: (65_536, 16_392, 18_432), 1024: (262_144, 65_544, 73_728)}


@pytest.mark.parametrize("n_tokens", DOCUMENT)
def test_byte_table_of_the_document(measured: Measurements, n_tokens: int) -> None:
    """R13, R14, R85: K and V, codes and scales apart, summed from the nbytes of the arrays that are saved."""
    tensors = measured.arrays[Cell(7, n_tokens, NORMAL)]
    for name, expected in zip((TENSOR, ROW), DOCUMENT[n_tokens][1:], strict=True):
        stored = {
            key: tensor for key, tensor in tensors.items() if key.startswith(f"{name}.") and key != f"{name}.output"
        }
        assert len(stored) == 4
        summed = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
        table = next(r for r in measured.tables.bytes if (r["n_tokens"], r["quantizer"]) == (n_tokens, name))
        assert table["stored_nbytes"] == summed == expected
        assert table["keys_codes_nbytes"] == table["values_codes_nbytes"] == n_tokens * 32
        assert table["keys_scales_nbytes"] == table["values_scales_nbytes"] == 4 * (1 if name == TENSOR else n_tokens)
        assert table["float32_nbytes"] == DOCUMENT[n_tokens][0]


def test_fourfold_is_shown_as_what_it_is(measured: Measurements) -> None:
    """R22, R66, R87: 4x of the codes alone is 3.556x with a scale a row, 71.875% and not 75% saved."""
    for r in measured.tables.bytes:
        assert r["nominal_float32_over_codes"] == 4
        assert r["float32_over_stored"] < 4
        if r["quantizer"] == ROW:
            assert r["float32_over_stored"] == pytest.approx(32 / 9, abs=1e-15)
            assert r["saved_of_float32_percent"] == 71.875


def test_both_denominators_are_named(measured: Measurements) -> None:
    """R88, R89: the same stored bytes against float32 and against 16 bit; the float64 reference is neither."""
    for r in (*measured.tables.rows, *measured.tables.bytes, *measured.tables.variants):
        values = 2 * int(r["n_tokens"]) * 32
        assert (r["float32_nbytes"], r["float16_nbytes"]) == (4 * values, 2 * values)
        assert r["float32_over_stored"] == r["float32_nbytes"] / r["stored_nbytes"]
        assert r["float16_over_stored"] == r["float16_nbytes"] / r["stored_nbytes"]
    per_row = next(r for r in measured.tables.bytes if r["quantizer"] == ROW)
    assert per_row["float16_over_stored"] == pytest.approx(16 / 9, abs=1e-15)
    assert per_row["saved_of_float16_percent"] == 43.75


def test_measured_bytes_equal_the_prediction_of_the_core(measured: Measurements) -> None:
    """R19: what the layout predicts for one KV head of width 32 is what the codecs stored."""
    for r in (*measured.tables.rows, *measured.tables.variants):
        name = str(r.get("quantizer") or r["variant"])
        n_tokens = int(r["n_tokens"])
        kv_format = parse_format(variant_format(name, n_tokens) if name in VARIANTS else name)
        for side, spec in (("keys", kv_format.keys), ("values", kv_format.values)):
            coded = n_tokens - kv_format.sinks
            block_nbytes = sum(stream.block_nbytes for stream in streams(spec, 1, 32))
            predicted = coded // spec.tokens_per_block * block_nbytes + sum(static_nbytes(spec, 1, 64).values())
            assert r[f"{side}_codes_nbytes"] + r[f"{side}_scales_nbytes"] == predicted
            assert r[f"{side}_exact_nbytes"] == kv_format.sinks * 32 * 4


def test_range_fit_against_metadata(measured: Measurements) -> None:
    """R5: on the same data, more scales cost more bytes and fit the array better."""
    rows = {(r["seed"], r["n_tokens"], r["input"], r["quantizer"]): r for r in measured.tables.rows}
    for (seed, n_tokens, kind, quantizer), tensor in rows.items():
        if quantizer == TENSOR:
            per_row = rows[seed, n_tokens, kind, ROW]
            assert per_row["stored_nbytes"] > tensor["stored_nbytes"]
            for side in ("keys", "values"):
                assert per_row[f"{side}_rmse"] < tensor[f"{side}_rmse"]
