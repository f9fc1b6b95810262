"""Errors of captured keys and values, and of what attention makes of them, against float64 (R42, R43, R50, R81, R82).

For each layer the real queries of a document attend to exact keys and values in float64, and again with keys,
values or both replaced by what a cache of the format would hand to each query. A small error of the array can become a
large one of the scores and softmax weights (keys), or go straight into the weighted sum (values), so all are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.cache.quantized_cache import SideCalibration
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, side_plans
from kvassay.core.spec import exact_spec
from kvassay.engines.transformers.decode_attention import AttentionParts, attention_parts, visible_tokens
from kvassay.engines.transformers.decode_scorer import LayerAttention
from kvassay.engines.transformers.decode_view import DecodeView, decode_view

MEASURED_QUERIES = 64
"""The last queries of a document are measured: they see the longest history."""


class AttentionError(NamedTuple):
    """Errors of one layer with the keys, the values, or both replaced by decoded codes."""

    layer: int
    substituted: str
    """`keys`, `values` or `both`."""
    reconstruction_rmse: float
    """Of the replaced arrays, over the tokens read from codes."""
    reconstruction_relative: float
    """Root of error energy over signal energy of the same elements."""
    score_max_abs: float
    weight_max_abs: float
    output_max_abs: float
    output_rmse: float
    output_relative: float


class _Views(NamedTuple):
    keys: DecodeView
    values: DecodeView


class MeasuredFormat(NamedTuple):
    """A format to measure, with the static scales of the observed layer."""

    kv_format: KVFormat
    calibration: SideCalibration = (None, None)


@torch.inference_mode()
def attention_errors(
    observed: LayerAttention, formats: Sequence[MeasuredFormat], geometry: CacheGeometry
) -> list[list[AttentionError]]:
    """Errors of one layer for each format: `keys`, `values` and `both`.

    Sides that a format stores as plain floats have their rounding error only.
    """
    queries = observed.queries[:, :, -MEASURED_QUERIES:].double()
    tokens = observed.keys.shape[2]
    first = tokens - queries.shape[2]
    rule = observed.rule
    if rule.sink_logits is not None:
        rule = rule._replace(sink_logits=rule.sink_logits.double())
    exact = _exact_views(observed, geometry)
    expected = attention_parts(queries, exact.keys, exact.values, first, rule)
    visible = visible_tokens(first, tokens - 1, rule.sliding_window, queries.device)
    found = []
    for measured in formats:
        stored = _stored_views(observed, measured.kv_format, geometry, measured.calibration)
        rows = []
        for substituted, views in (
            ("keys", _Views(stored.keys, exact.values)),
            ("values", _Views(exact.keys, stored.values)),
            ("both", stored),
        ):
            parts = attention_parts(queries, views.keys, views.values, first, rule)
            rows.append(_error(observed.layer, substituted, exact, stored, expected, parts, visible))
        found.append(rows)
    return found


def _exact_views(observed: LayerAttention, geometry: CacheGeometry) -> _Views:
    """The sides as float64, never quantized."""
    plan = SidePlan(exact_spec("float32"), 0, 0, geometry.layers[observed.layer].sliding_window)
    return _Views(
        decode_view(observed.keys.double(), plan, "float32", None, f"keys of layer {observed.layer}"),
        decode_view(observed.values.double(), plan, "float32", None, f"values of layer {observed.layer}"),
    )


def _stored_views(
    observed: LayerAttention, kv_format: KVFormat, geometry: CacheGeometry, calibration: SideCalibration
) -> _Views:
    key_plan, value_plan = side_plans(kv_format, observed.layer, geometry.layers[observed.layer])
    exact = kv_format.exact_dtype
    return _Views(
        decode_view(observed.keys.double(), key_plan, exact, calibration[0], f"keys of layer {observed.layer}"),
        decode_view(observed.values.double(), value_plan, exact, calibration[1], f"values of layer {observed.layer}"),
    )


def _error(
    layer: int,
    substituted: str,
    exact: _Views,
    stored: _Views,
    expected: AttentionParts,
    found: AttentionParts,
    visible: Tensor,
) -> AttentionError:
    sides = ("keys", "values") if substituted == "both" else (substituted,)
    pairs = [_reconstruction(getattr(exact, side), getattr(stored, side)) for side in sides]
    difference, signal = zip(*pairs, strict=True)
    error_energy, num_elements = (
        sum(float((d**2).sum()) for d in difference),
        sum(d.numel() for d in difference),
    )
    signal_energy = sum(float((s**2).sum()) for s in signal)
    output_error = found.output - expected.output
    return AttentionError(
        layer=layer,
        substituted=substituted,
        reconstruction_rmse=(error_energy / num_elements) ** 0.5 if num_elements else 0.0,
        reconstruction_relative=(error_energy / signal_energy) ** 0.5 if signal_energy else 0.0,
        score_max_abs=float(((found.scores - expected.scores).abs() * visible).max()),
        weight_max_abs=float((found.weights - expected.weights).abs().max()),
        output_max_abs=float(output_error.abs().max()),
        output_rmse=float(output_error.square().mean().sqrt()),
        output_relative=float(output_error.norm() / expected.output.norm()),
    )


def _reconstruction(exact: DecodeView, stored: DecodeView) -> tuple[Tensor, Tensor]:
    """Error and signal of the tokens that the last query reads from codes."""
    tokens = slice(stored.first_stored, stored.boundaries[-1])
    signal = exact.exact[:, :, tokens]
    return stored.stored[:, :, tokens] - signal, signal
