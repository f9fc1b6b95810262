"""The 36 rows, computed here by the experiment's own code, and its worst cell taken apart (R77, R78, R92)."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from torch import Tensor

from kvassay.experiments.attention_error import Measurements, measure_attention_error, run_attention_error
from kvassay.experiments.attention_error_plan import (
    CHANNEL_KEYS,
    EXACT_OUTLIER_ROW,
    EXCLUSIONS,
    NOT_PROVEN,
    ROW,
    STALE_SCALE,
    SYNTHETIC_LABEL,
    TENSOR,
    VARIANT_TITLES,
    Cell,
)
from kvassay.experiments.attention_error_tables import Value, number, worst_first
from kvassay.experiments.audit import audit_attention_error

SHOWN_CODES = 12
"""Channels of a row whose codes are printed."""


class ExperimentRoom:
    """Computes once, when the room is first opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Measurements | None = None

    def tables(self) -> dict[str, Any]:
        found = self._measured()
        tables = found.tables
        return {
            "label": SYNTHETIC_LABEL,
            "rows": worst_first(tables.rows),
            "bytes": tables.bytes,
            "variants": [{**row, "title": VARIANT_TITLES[str(row["variant"])]} for row in tables.variants],
            "exercise": tables.exercise,
            "worst": worst_cell(found),
            "exclusions": list(EXCLUSIONS),
            "not_proven": list(NOT_PROVEN),
        }

    def audit(self) -> dict[str, Any]:
        """Write a fresh folder, and let the audit recompute it with arithmetic of its own."""
        with self._lock, tempfile.TemporaryDirectory(prefix="kvassay-lab-") as folder:
            out = Path(folder) / "experiment"
            result = run_attention_error(out)
            verification = audit_attention_error(out, result.root)
            return {
                "passed": verification.passed,
                "root": result.root,
                "checks": [check._asdict() for check in verification.checks],
            }

    def _measured(self) -> Measurements:
        with self._lock:
            if self._found is None:
                self._found = measure_attention_error()
            return self._found


def worst_cell(found: Measurements) -> dict[str, Any]:
    """The worst row beside the other ways to store the same arrays, and the codes that show why."""
    worst = worst_first(found.tables.rows)[0]
    key = {name: worst[name] for name in ("seed", "n_tokens", "input")}

    def like(rows: list[dict[str, Value]], name: str, value: str) -> dict[str, Value]:
        return next(row for row in rows if row[name] == value and key.items() <= row.items())

    tensor, row = (like(found.tables.rows, "quantizer", name) for name in (TENSOR, ROW))
    arrays = found.arrays[Cell(int(number(worst, "seed")), int(number(worst, "n_tokens")), str(worst["input"]))]
    tensor_codes, row_codes = arrays[f"{TENSOR}.keys.codes"], arrays[f"{ROW}.keys.codes"]
    row_scales = arrays[f"{ROW}.keys.scales"].flatten()
    return {
        "cell": key,
        "reference_max_abs": worst["reference_max_abs"],
        "fold": number(tensor, "keys_rmse") / number(row, "keys_rmse"),
        "ways": [
            _way("one scale a tensor", tensor),
            _way("one scale a row", row),
            _way(VARIANT_TITLES[CHANNEL_KEYS], like(found.tables.variants, "variant", CHANNEL_KEYS)),
            _way(VARIANT_TITLES[EXACT_OUTLIER_ROW], like(found.tables.variants, "variant", EXACT_OUTLIER_ROW)),
            _way(VARIANT_TITLES[STALE_SCALE], like(found.tables.variants, "variant", STALE_SCALE)),
        ],
        "tensor_scale": float(arrays[f"{TENSOR}.keys.scales"].flatten()[0]),
        "row_scales": [float(row_scales[0]), float(row_scales[1])],
        "codes": {
            "row 0": {"tensor": _codes(tensor_codes[0]), "row": _codes(row_codes[0])},
            "row 1": {"tensor": _codes(tensor_codes[1]), "row": _codes(row_codes[1])},
        },
        "equal_codes_in_row_0": int((tensor_codes[0] == row_codes[0]).sum()),
        "width": tensor_codes.shape[1],
        "levels_used_in_other_rows": {
            "tensor": int(tensor_codes[1:].unique().numel()),
            "row": int(row_codes[1:].unique().numel()),
        },
    }


def _way(title: str, row: dict[str, Value]) -> dict[str, Any]:
    columns = ("output_max_abs", "output_relative", "output_keys_only_max_abs", "output_values_only_max_abs")
    return {"title": title, **{name: row[name] for name in (*columns, "keys_rmse", "values_rmse", "stored_nbytes")}}


def _codes(row: Tensor) -> list[int]:
    return row[:SHOWN_CODES].tolist()
