"""Run the attention-error experiment: 36 rows of int8 K and V, their bytes, and a folder that proves them.

    result = run_attention_error(Path("out"))
    result.worst["output_max_abs"]  # 4.136

The product's own codecs encode and decode (R73: codes and scales are saved as they are stored); attention
runs in float64. `kvassay.experiments.audit` recomputes everything from the folder.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from kvassay.core.digest import sha256_bytes
from kvassay.core.format_names import parse_format
from kvassay.experiments.attention_error_codecs import StoredPair, encode_pair, encode_side
from kvassay.experiments.attention_error_inputs import draw_inputs
from kvassay.experiments.attention_error_manifest import (
    ARRAYS_FILE,
    PLAN_FILE,
    SUMMARY_FILE,
    AttentionErrorManifest,
    plan_json,
)
from kvassay.experiments.attention_error_measure import TorchInputs, attend, measure_pair
from kvassay.experiments.attention_error_plan import (
    BYTE_RATIO_COLUMNS,
    CELLS,
    EXERCISE_STARTS,
    EXERCISE_TOKENS,
    EXPERIMENT,
    EXPERIMENT_VERSION,
    LENGTHS,
    NORMAL,
    OUTLIER,
    OUTLIER_FACTOR,
    QUANTIZERS,
    SEEDS,
    STALE_SCALE,
    TABLES,
    VARIANTS,
    WIDTH,
    Cell,
    variant_format,
)
from kvassay.experiments.attention_error_provenance import commit, environment, source_hashes
from kvassay.experiments.attention_error_summary import render_summary
from kvassay.experiments.attention_error_tables import Tables, Value, number, to_csv, to_parquet, worst_first
from kvassay.formats.calibration import UnitScaleWarning
from kvassay.pack.folder import EXPERIMENT_SCHEMA, FolderWriter

Arrays = dict[str, Tensor]


class ExperimentResult(NamedTuple):
    """What a run leaves: the folder, its root digest, and its tables as plain rows."""

    folder: Path
    root: str
    tables: Tables

    @property
    def worst(self) -> dict[str, Value]:
        """The row with the largest output error."""
        return worst_first(self.tables.rows)[0]


class Measurements(NamedTuple):
    tables: Tables
    arrays: dict[Cell, Arrays]


def run_attention_error(out: Path) -> ExperimentResult:
    """Run everything and write it to the fresh folder `out`.

    Raises PackError when `out` exists or cannot be written; nothing is left there then.
    """
    with FolderWriter(out, EXPERIMENT_SCHEMA, AttentionErrorManifest) as folder:
        tables, arrays = measure_attention_error()
        hashes: dict[str, object] = {}
        for cell, tensors in arrays.items():
            folder.write_bytes(cell.path, save(tensors))
            hashes |= {f"{cell.name}/{name}": _described(tensor) for name, tensor in sorted(tensors.items())}
        folder.write_json(ARRAYS_FILE, hashes)
        folder.write_json(PLAN_FILE, plan_json())
        for name, columns in TABLES.items():
            rows: list[dict[str, Value]] = getattr(tables, name)
            folder.write_bytes(f"{name}.parquet", to_parquet(rows, columns))
            folder.write_text(f"{name}.csv", to_csv(rows, columns))
        folder.write_text(SUMMARY_FILE, render_summary(tables, environment()))
        manifest = folder.commit(_facts())
    return ExperimentResult(folder.out, manifest.root, tables)


def measure_attention_error() -> Measurements:
    """All tables and arrays in memory, in the order of the plan."""
    rows: list[dict[str, Value]] = []
    variants: list[dict[str, Value]] = []
    arrays: dict[Cell, Arrays] = {}
    drawn = {cell: inputs for seed in SEEDS for cell, inputs in draw_inputs(seed).items()}
    for cell in CELLS:
        inputs = _as_torch(drawn[cell])
        tensors = arrays[cell] = _input_arrays(inputs)
        key = {"seed": cell.seed, "n_tokens": cell.n_tokens, "input": cell.input}
        for name in QUANTIZERS:
            figures = _measure(name, encode_pair(name, inputs.keys, inputs.values), inputs, tensors)
            rows.append({**key, "quantizer": name, **figures})
        if cell.input != OUTLIER:
            continue
        normal = _as_torch(drawn[cell._replace(input=NORMAL)])
        for name in VARIANTS:
            format_text = variant_format(name, cell.n_tokens)
            calibrated_on = (normal.keys, normal.values) if name == STALE_SCALE else None
            pair = encode_pair(format_text, inputs.keys, inputs.values, calibrated_on)
            figures = _measure(name, pair, inputs, tensors)
            variants.append({**key, "variant": name, "format": format_text, **figures})
    return Measurements(Tables(rows, variants, byte_rows(rows), exercise_rows()), arrays)


def byte_rows(rows: list[dict[str, Value]]) -> list[dict[str, Value]]:
    """The byte table (R85) from the bytes of the stored arrays of the first seed; other seeds must not
    differ."""
    columns = [
        "n_tokens",
        "quantizer",
        *(f"{s}_{p}_nbytes" for s in ("keys", "values") for p in ("codes", "scales")),
    ]
    table: list[dict[str, Value]] = []
    for n_tokens in LENGTHS:
        for name in QUANTIZERS:
            same = [row for row in rows if (row["n_tokens"], row["quantizer"]) == (n_tokens, name)]
            sizes = [{column: row[column] for column in (*columns, *BYTE_RATIO_COLUMNS)} for row in same]
            assert all(size == sizes[0] for size in sizes), "bytes depend on shape and format alone"
            codes_nbytes = number(sizes[0], "keys_codes_nbytes") + number(sizes[0], "values_codes_nbytes")
            nominal = number(sizes[0], "float32_nbytes") / codes_nbytes
            table.append({**sizes[0], "nominal_float32_over_codes": nominal})
    return table


def exercise_rows() -> list[dict[str, Value]]:
    """R98, R99: which scales of K change when one element is enlarged.

    Arrays of zeros are what is asked for, so that their scale of 1.0 is no warning.
    """
    zeros = torch.zeros(EXERCISE_TOKENS, WIDTH, dtype=torch.float64)
    from_zeros = zeros.clone()
    from_zeros[0, 0] = OUTLIER_FACTOR
    drawn = draw_inputs(SEEDS[0])
    before, after = (_as_torch(drawn[Cell(SEEDS[0], EXERCISE_TOKENS, kind)]).keys for kind in (NORMAL, OUTLIER))
    pairs = dict(zip(EXERCISE_STARTS, ((zeros, from_zeros), (before, after)), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnitScaleWarning)
        return [_exercise(start, *pairs[start], name) for start in EXERCISE_STARTS for name in QUANTIZERS]


def _exercise(start: str, before: Tensor, after: Tensor, name: str) -> dict[str, Value]:
    spec = parse_format(name).keys
    old, new = encode_side(spec, before), encode_side(spec, after)
    old_scales, new_scales = old.scales.flatten(), new.scales.flatten()
    return {
        "start": start,
        "quantizer": name,
        "scales": old_scales.numel(),
        "scales_changed": int((old_scales != new_scales).sum()),
        "first_scale_before": float(old_scales[0]),
        "first_scale_after": float(new_scales[0]),
        "last_scale_before": float(old_scales[-1]),
        "last_scale_after": float(new_scales[-1]),
        "rows_with_changed_codes": int((old.codes != new.codes).any(dim=1).sum()),
    }


def _measure(name: str, pair: StoredPair, inputs: TorchInputs, tensors: Arrays) -> dict[str, Value]:
    """Figures of one stored pair, whose arrays are added to `tensors` under `name`."""
    measured = measure_pair(inputs, pair)
    for side, stored in pair._asdict().items():
        tensors[f"{name}.{side}.codes"] = stored.codes.contiguous()
        tensors[f"{name}.{side}.scales"] = stored.scales.contiguous()
        if stored.exact.numel():
            tensors[f"{name}.{side}.exact"] = stored.exact.contiguous()
    tensors[f"{name}.output"] = measured.output
    return dict(measured.figures)


def _input_arrays(inputs: TorchInputs) -> Arrays:
    return {**inputs._asdict(), "reference.output": attend(*inputs).output}


def _as_torch(inputs: tuple[NDArray, NDArray, NDArray]) -> TorchInputs:
    return TorchInputs(*(torch.from_numpy(array) for array in inputs))


def _described(tensor: Tensor) -> dict[str, object]:
    """One line of arrays.json: the SHA-256 is that of the little-endian bytes in row order."""
    data = tensor.numpy().tobytes()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "nbytes": len(data),
        "sha256": sha256_bytes(data),
    }


def _facts() -> dict[str, object]:
    state = commit()
    return {
        "experiment": EXPERIMENT,
        "experiment_version": EXPERIMENT_VERSION,
        "git_commit": state.sha,
        "git_clean": state.clean,
        "sources": source_hashes(),
        "environment": environment(),
    }
