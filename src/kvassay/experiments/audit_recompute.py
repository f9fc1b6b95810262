"""What an attention-error folder must hold, recomputed from its saved arrays with NumPy: codes and tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvassay.experiments.attention_error_plan import (
    BYTE_RATIO_COLUMNS,
    CELLS,
    CHANNEL_KEYS,
    EXACT_OUTLIER_ROW,
    EXERCISE_STARTS,
    EXERCISE_TOKENS,
    LENGTHS,
    NORMAL,
    OUTLIER,
    OUTLIER_FACTOR,
    QUANTIZERS,
    SEEDS,
    SIDES,
    STALE_SCALE,
    TENSOR,
    VARIANTS,
    WIDTH,
    Cell,
    variant_format,
)
from kvassay.experiments.attention_error_tables import Tables, Value, number
from kvassay.experiments.audit_folder import Arrays
from kvassay.experiments.audit_reference import (
    F64,
    Inputs,
    Side,
    ideal_scales,
    measure,
    quantize,
    quantize_with,
    stored_scales,
)


class Expected(NamedTuple):
    """One side as the formulas give it, and its scales before they were rounded."""

    side: Side
    ideal: F64


def names_of(cell: Cell) -> tuple[str, ...]:
    """Quantizers and variants that a cell was stored with."""
    return (*QUANTIZERS, *(VARIANTS if cell.input == OUTLIER else ()))


def saved_inputs(arrays: Arrays) -> Inputs:
    return Inputs(arrays["queries"], arrays["keys"], arrays["values"])


def saved_side(arrays: Arrays, name: str, side: str) -> Side:
    none_kept = np.empty((0, WIDTH), np.float32)
    stem = f"{name}.{side}"
    return Side(arrays[f"{stem}.codes"], arrays[f"{stem}.scales"], arrays.get(f"{stem}.exact", none_kept))


def expected_side(name: str, side: str, x: F64, normal: F64) -> Expected:
    """`x` quantized anew as `name` says; `normal` is the same side of the normal input, for the stale
    scale."""
    if name == STALE_SCALE:
        ideal = ideal_scales(normal, None)
        return Expected(quantize_with(x, stored_scales(ideal)), ideal)
    kept = 1 if name == EXACT_OUTLIER_ROW else 0
    axis = _axis(name, side)
    coded = x[kept:]
    return Expected(quantize(coded, axis)._replace(exact=x[:kept].astype(np.float32)), ideal_scales(coded, axis))


def recompute_tables(arrays: dict[Cell, Arrays]) -> Tables:
    """All tables from saved inputs, codes and scales."""
    rows: list[dict[str, Value]] = []
    variants: list[dict[str, Value]] = []
    for cell in CELLS:
        tensors, normal = arrays[cell], arrays[cell._replace(input=NORMAL)]
        inputs = saved_inputs(tensors)
        key: dict[str, Value] = {"seed": cell.seed, "n_tokens": cell.n_tokens, "input": cell.input}
        for name in names_of(cell):
            keys, values = (saved_side(tensors, name, side) for side in SIDES)
            ideals = [expected_side(name, side, tensors[side], normal[side]).ideal for side in SIDES]
            figures = measure(inputs, keys, values, *ideals)
            if name in QUANTIZERS:
                rows.append({**key, "quantizer": name, **figures})
            else:
                variants.append({**key, "variant": name, "format": variant_format(name, cell.n_tokens), **figures})
    exercised = [arrays[Cell(SEEDS[0], EXERCISE_TOKENS, kind)]["keys"] for kind in (NORMAL, OUTLIER)]
    return Tables(rows, variants, _byte_rows(rows), _exercise_rows(*exercised))


def _byte_rows(rows: list[dict[str, Value]]) -> list[dict[str, Value]]:
    columns = ["n_tokens", "quantizer", *(f"{s}_{p}_nbytes" for s in SIDES for p in ("codes", "scales"))]
    by_key = {(row["n_tokens"], row["quantizer"]): row for row in rows}
    table: list[dict[str, Value]] = []
    for row in (by_key[n, name] for n in LENGTHS for name in QUANTIZERS):
        codes_nbytes = sum(number(row, f"{side}_codes_nbytes") for side in SIDES)
        # Two sides of n x 32 float32 values against their codes.
        nominal = 4 * 2 * number(row, "n_tokens") * WIDTH / codes_nbytes
        figures = {column: row[column] for column in (*columns, *BYTE_RATIO_COLUMNS)}
        table.append({**figures, "nominal_float32_over_codes": nominal})
    return table


def _exercise_rows(normal: F64, outlier: F64) -> list[dict[str, Value]]:
    zeros = np.zeros((EXERCISE_TOKENS, WIDTH))
    enlarged = zeros.copy()
    enlarged[0, 0] = OUTLIER_FACTOR
    pairs = dict(zip(EXERCISE_STARTS, ((zeros, enlarged), (normal, outlier)), strict=True))
    return [_exercise(start, *pairs[start], name) for start in EXERCISE_STARTS for name in QUANTIZERS]


def _exercise(start: str, before: F64, after: F64, name: str) -> dict[str, Value]:
    old, new = quantize(before, _axis(name, "keys")), quantize(after, _axis(name, "keys"))
    return {
        "start": start,
        "quantizer": name,
        "scales": old.scales.size,
        "scales_changed": int(np.count_nonzero(old.scales != new.scales)),
        "first_scale_before": float(old.scales.flat[0]),
        "first_scale_after": float(new.scales.flat[0]),
        "last_scale_before": float(old.scales.flat[-1]),
        "last_scale_after": float(new.scales.flat[-1]),
        "rows_with_changed_codes": int(np.any(old.codes != new.codes, axis=1).sum()),
    }


def _axis(name: str, side: str) -> int | None:
    """The axis that shares a scale: None for the whole array, 1 within a row, 0 within a channel."""
    if name == CHANNEL_KEYS and side == "keys":
        return 0
    return None if name in (TENSOR, STALE_SCALE) else 1
