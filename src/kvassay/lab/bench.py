"""The bench: what the product's codec stores of two arrays, and what attention makes of what it reads back.

Codes, scales and bytes are those of `kvassay.format(...)`: nothing here quantizes. Attention on drawn arrays is the
experiment's (8 query rows, not causal, float64); on captured ones it is the numeric level's, where each of the last
queries sees each token as the cache of the format would hand it out.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.experiments.attention_error_measure import attend
from kvassay.formats.calibration import UnitScaleWarning
from kvassay.formats.packed_kv import PackedFormat, PackedKV
from kvassay.lab.bench_arrays import BenchArrays, bench_arrays, enlarged
from kvassay.lab.bench_settings import BenchSettings
from kvassay.lab.capture import Captured
from kvassay.lab.stored_side import stored_view

_ONE_AT_A_TIME = threading.Lock()
"""Warning filters belong to the process, and two runs at once would only share the cores."""


class Packed(NamedTuple):
    """Both sides as stored, and as read back in float64."""

    packed: PackedKV
    keys: Tensor
    values: Tensor
    calibration: Any


def run_bench(settings: BenchSettings, captured: Captured | None) -> dict[str, Any]:
    """Everything the room shows; raises FormatError, GeometryError, RangeError or NonFiniteError."""
    kv_format = parse_format(settings.format_text)
    arrays = bench_arrays(settings, captured)
    keys, values = (enlarged(side, settings.outlier) for side in (arrays.keys, arrays.values))
    with _ONE_AT_A_TIME:
        stored = _pack(kv_format, keys, values, settings.layer)
        untouched = _pack(kv_format, arrays.keys, arrays.values, settings.layer) if settings.outlier != 1 else None
    exact_side = {"keys": keys, "values": values}
    views = {side: stored_view(stored.packed, side) for side in exact_side}
    before = None if untouched is None else stored_view(untouched.packed, settings.side)
    decoded = {"keys": stored.keys, "values": stored.values}
    return {
        "format": kv_format.name,
        "format_text": settings.format_text,
        "digest": kv_format.digest[:12],
        "label": arrays.label + _enlarged_words(settings),
        "tokens": keys.shape[0],
        "width": keys.shape[1],
        "bytes": _bytes(stored.packed),
        "figures": _figures(arrays, keys, values, stored, kv_format, settings.layer),
        "side": {"name": settings.side, **views[settings.side].to_json(before, exact_side[settings.side])},
        "clipped": {side: views[side].clipped for side in views},
        "tokens_error": _by_token(exact_side, decoded),
    }


def _pack(kv_format: KVFormat, keys: Tensor, values: Tensor, layer: int) -> Packed:
    """What is static is calibrated on the arrays themselves; what saturates all the same is counted, not refused."""
    codec = PackedFormat(kv_format)
    cached = keys[None, None], values[None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnitScaleWarning)  # arrays of zeros are asked for
        needed = any(side.needs_calibration for side in (kv_format.keys, kv_format.values))
        calibration = codec.calibrate(*cached, layer=layer) if needed else None
        packed = codec.encode(*cached, layer=layer, calibration=calibration, on_clip="count")
    read = codec.decode(packed, torch.float64)
    return Packed(packed, read.keys[0, 0], read.values[0, 0], calibration)


def _bytes(packed: PackedKV) -> dict[str, Any]:
    ledger = packed.ledger()
    shape = packed.geometry
    elements = shape.tokens * (shape.head_dim + shape.value_dim)
    sides = {"keys": ledger.keys_nbytes, "values": ledger.values_nbytes}
    return {
        **{side: {owner.value: nbytes for owner, nbytes in found.items()} for side, found in sides.items()},
        "total": packed.nbytes,
        "float32": ledger.float32_nbytes,
        "float16": ledger.float16_nbytes,
        "bits_per_value": 8 * packed.nbytes / elements,
        "float32_over_stored": ledger.float32_nbytes / packed.nbytes,
        "share_of_16_bit": ledger.ratio_to_float16,
        "assumptions": list(ledger.assumptions),
    }


def _figures(
    arrays: BenchArrays, keys: Tensor, values: Tensor, stored: Packed, kv_format: KVFormat, layer: int
) -> list[dict[str, Any]]:
    """Rows of the error table: what is compared, largest absolute error, RMSE, relative error."""
    found = [_error("array K", stored.keys, keys), _error("array V", stored.values, values)]
    if arrays.captured is not None:
        return [*found, *_of_queries(arrays, keys, values, stored, kv_format, layer)]
    reference = attend(arrays.queries, keys, values)
    both = attend(arrays.queries, stored.keys, stored.values)
    keys_only = attend(arrays.queries, stored.keys, values)
    values_only = attend(arrays.queries, keys, stored.values)
    return [
        *found,
        _error("score", both.scores, reference.scores),
        _error("softmax weight", both.weights, reference.weights),
        _error("output", both.output, reference.output),
        _error("output, K alone", keys_only.output, reference.output),
        _error("output, V alone", values_only.output, reference.output),
    ]


def _of_queries(
    arrays: BenchArrays, keys: Tensor, values: Tensor, stored: Packed, kv_format: KVFormat, layer: int
) -> list[dict[str, Any]]:
    from kvassay.engines.transformers.decode_scorer import LayerAttention
    from kvassay.measures.attention_error import MeasuredFormat, attention_errors

    assert arrays.captured is not None
    assert arrays.geometry is not None
    repeats = arrays.geometry.query_heads
    queries = arrays.queries.unflatten(0, (repeats, -1))[None]
    rule = arrays.captured.head(layer, 0).rule
    observed = LayerAttention(layer, queries, keys[None, None], values[None, None], rule)
    measured = MeasuredFormat(kv_format, stored.calibration)
    (errors,) = attention_errors(observed, [measured], arrays.geometry, queries.shape[2])
    cells = {cell.substituted: cell for cell in errors.cells}
    parts = (
        ("score", cells["both"].score),
        ("softmax weight", cells["both"].weight),
        ("output", cells["both"].output),
        ("output, K alone", cells["keys"].output),
        ("output, V alone", cells["values"].output),
    )
    return [{"name": name, **part._asdict()} for name, part in parts]


def _error(name: str, found: Tensor, expected: Tensor) -> dict[str, Any]:
    """`relative` is the root of error energy over signal energy; None where there is no signal to divide by."""
    error = found - expected
    size, signal = float(error.norm()), float(expected.norm())
    return {
        "name": name,
        "max_abs": float(error.abs().max()),
        "rmse": size / error.numel() ** 0.5,
        "relative": size / signal if signal else None if size else 0.0,
    }


def _by_token(exact: Mapping[str, Tensor], decoded: Mapping[str, Tensor], bars: int = 64) -> list[dict[str, Any]]:
    """RMSE of K and V by token, the worst token of each run where there are more tokens than bars."""
    tokens = exact["keys"].shape[0]
    run = -(-tokens // bars)
    errors = {side: (decoded[side] - exact[side]).square().mean(1).sqrt() for side in exact}
    return [
        {
            "first": start,
            "last": min(start + run, tokens) - 1,
            **{side: float(errors[side][start : start + run].max()) for side in errors},
        }
        for start in range(0, tokens, run)
    ]


def _enlarged_words(settings: BenchSettings) -> str:
    if settings.outlier == 1:
        return ""
    factor = f"{settings.outlier:g}"
    return f" Element [0, 0] of K and V {'is ' + factor if settings.source == 'zeros' else 'times ' + factor}."
