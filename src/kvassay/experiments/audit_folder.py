"""Read the arrays and tables of an attention-error folder that someone else may have prepared.

Everything is bounded and checked before it is used: size, names, dtypes, shapes, finite values. No pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from kvassay.core.digest import sha256_bytes
from kvassay.errors import PackError
from kvassay.experiments.attention_error_plan import (
    CELLS,
    CHANNEL_KEYS,
    EXACT_OUTLIER_ROW,
    OUTLIER,
    QUANTIZERS,
    QUERY_ROWS,
    ROW,
    SIDES,
    TABLES,
    VARIANTS,
    WIDTH,
    Cell,
)
from kvassay.experiments.attention_error_tables import MAX_NBYTES, Tables, from_parquet
from kvassay.pack.plain_files import read_plain

MAX_ARRAYS_NBYTES = 4 << 20
"""The largest file of arrays has 0.9 MB."""

Arrays = dict[str, NDArray[Any]]


class TensorSpec(NamedTuple):
    dtype: str
    shape: tuple[int, ...]


def load_arrays(folder: Path) -> dict[Cell, Arrays]:
    """All arrays of all cells; raises PackError naming the first that is missing, unknown or not as
    planned."""
    return {cell: _load_cell(read_plain(folder, cell.path, MAX_ARRAYS_NBYTES), cell) for cell in CELLS}


def load_tables(folder: Path) -> Tables:
    """All Parquet tables; raises PackError naming the file."""
    return Tables(
        **{
            name: from_parquet(read_plain(folder, f"{name}.parquet", MAX_NBYTES), columns, f"{name}.parquet")
            for name, columns in TABLES.items()
        }
    )


def tensor_specs(cell: Cell) -> dict[str, TensorSpec]:
    """Dtype and shape of every array of a cell, by name."""
    rows = TensorSpec("float64", (cell.n_tokens, WIDTH))
    output = TensorSpec("float64", (QUERY_ROWS, WIDTH))
    specs = {"queries": output, "keys": rows, "values": rows, "reference.output": output}
    for name in (*QUANTIZERS, *(VARIANTS if cell.input == OUTLIER else ())):
        specs[f"{name}.output"] = output
        for side in SIDES:
            kept = 1 if name == EXACT_OUTLIER_ROW else 0
            coded = cell.n_tokens - kept
            specs[f"{name}.{side}.codes"] = TensorSpec("int8", (coded, WIDTH))
            specs[f"{name}.{side}.scales"] = TensorSpec("float32", _scales_shape(name, side, coded))
            if kept:
                specs[f"{name}.{side}.exact"] = TensorSpec("float32", (kept, WIDTH))
    return specs


def describe_arrays(arrays: dict[Cell, Arrays]) -> dict[str, object]:
    """What arrays.json must say of these arrays: dtype, shape, bytes and SHA-256 of each."""
    described: dict[str, object] = {}
    for cell, tensors in arrays.items():
        for name, array in tensors.items():
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            described[f"{cell.name}/{name}"] = {
                "dtype": array.dtype.name,
                "shape": list(array.shape),
                "nbytes": array.nbytes,
                "sha256": sha256_bytes(data),
            }
    return described


def _load_cell(data: bytes, cell: Cell) -> Arrays:
    try:
        arrays: Arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PackError(f"{cell.path}: not a readable safetensors file: {str(error)[:200]}") from error
    specs = tensor_specs(cell)
    if odd := sorted(set(arrays) ^ set(specs)):
        what = "missing" if odd[0] in specs else "unknown"
        raise PackError(f"{cell.path}: array {odd[0][:100]!r} is {what}")
    for name, spec in specs.items():
        array = arrays[name]
        if (array.dtype.name, array.shape) != spec:
            raise PackError(
                f"{cell.path}: array {name!r} is {array.dtype.name} {list(array.shape)}, "
                f"expected {spec.dtype} {list(spec.shape)}"
            )
        if not np.isfinite(array).all():
            raise PackError(f"{cell.path}: array {name!r} holds NaN or infinity")
    return arrays


def _scales_shape(name: str, side: str, coded_tokens: int) -> tuple[int, int]:
    if name == CHANNEL_KEYS and side == "keys":
        return 1, WIDTH
    return (coded_tokens, 1) if name in (ROW, CHANNEL_KEYS, EXACT_OUTLIER_ROW) else (1, 1)
