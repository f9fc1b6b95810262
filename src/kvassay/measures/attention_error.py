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

from kvassay.cache.cohorts import LayerCalibration, SideCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import SIDES, HeadGroup, KVFormat, SidePlan, head_groups
from kvassay.core.spec import exact_spec
from kvassay.engines.transformers.decode_attention import (
    AttentionParts,
    attention_parts,
    query_heads_of,
    visible_tokens,
)
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
    """A format to measure, with the static arrays of the observed layer."""

    kv_format: KVFormat
    calibration: LayerCalibration | None = None
    key_transform: KeyTransform | None = None
    """Of the observed layer; for formats that remove bias or rotary embedding."""


class _Part(NamedTuple):
    """One head group: what is expected of it, and what came of it under one substitution."""

    exact: _Views
    stored: _Views
    expected: AttentionParts
    found: AttentionParts


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
    layer = geometry.layers[observed.layer]
    visible = visible_tokens(first, tokens - 1, observed.rule.sliding_window, queries.device)
    exact_of: dict[tuple[int, ...], tuple[_Views, AttentionParts]] = {}
    found = []
    for measured in formats:
        parts: dict[str, list[_Part]] = {"keys": [], "values": [], "both": []}
        groups = head_groups(measured.kv_format, observed.layer, layer)
        calibration = measured.calibration or ((None, None),) * len(groups)
        for group, sides in zip(groups, calibration, strict=True):
            chosen = query_heads_of(group.heads, queries.shape[1] // observed.keys.shape[1])
            own_queries, rule = queries[:, chosen], observed.rule
            if rule.sink_logits is not None:
                rule = rule._replace(sink_logits=rule.sink_logits[chosen].double())
            if group.heads not in exact_of:  # all formats are measured against one exact attention
                views = _exact_views(observed, group, geometry)
                exact_of[group.heads] = (views, attention_parts(own_queries, views.keys, views.values, first, rule))
            exact, expected = exact_of[group.heads]
            stored = _stored_views(observed, measured, group, sides)
            for substituted, views in (
                ("keys", _Views(stored.keys, exact.values)),
                ("values", _Views(exact.keys, stored.values)),
                ("both", stored),
            ):
                result = attention_parts(own_queries, views.keys, views.values, first, rule)
                parts[substituted].append(_Part(exact, stored, expected, result))
        found.append([_error(observed.layer, name, groups_parts, visible) for name, groups_parts in parts.items()])
    return found


def _exact_views(observed: LayerAttention, group: HeadGroup, geometry: CacheGeometry) -> _Views:
    """The sides as float64, never quantized."""
    window = geometry.layers[observed.layer].sliding_window
    keys, values = (SidePlan(side, exact_spec("float32"), 0, 0, window) for side in SIDES)
    heads = list(group.heads)
    return _Views(
        decode_view(observed.keys[:, heads].double(), keys, "float32", None, f"keys of layer {observed.layer}"),
        decode_view(observed.values[:, heads].double(), values, "float32", None, f"values of layer {observed.layer}"),
    )


def _stored_views(
    observed: LayerAttention, measured: MeasuredFormat, group: HeadGroup, calibration: SideCalibration
) -> _Views:
    exact, heads, layer = measured.kv_format.exact_dtype, list(group.heads), observed.layer
    keys, values = observed.keys[:, heads].double(), observed.values[:, heads].double()
    transform = None if measured.key_transform is None else measured.key_transform.for_heads(group.heads)
    return _Views(
        decode_view(keys, group.keys, exact, calibration[0], f"keys of layer {layer}", transform),
        decode_view(values, group.values, exact, calibration[1], f"values of layer {layer}"),
    )


def _error(layer: int, substituted: str, parts: Sequence[_Part], visible: Tensor) -> AttentionError:
    sides = ("keys", "values") if substituted == "both" else (substituted,)
    pairs = [_reconstruction(getattr(p.exact, side), getattr(p.stored, side)) for p in parts for side in sides]
    error_energy = sum(float((difference**2).sum()) for difference, _ in pairs)
    signal_energy = sum(float((signal**2).sum()) for _, signal in pairs)
    num_elements = sum(difference.numel() for difference, _ in pairs)
    output_errors = [part.found.output - part.expected.output for part in parts]
    output_energy = sum(float(error.square().sum()) for error in output_errors)
    expected_energy = sum(float(part.expected.output.square().sum()) for part in parts)
    return AttentionError(
        layer=layer,
        substituted=substituted,
        reconstruction_rmse=(error_energy / num_elements) ** 0.5 if num_elements else 0.0,
        reconstruction_relative=(error_energy / signal_energy) ** 0.5 if signal_energy else 0.0,
        score_max_abs=max(float(((p.found.scores - p.expected.scores).abs() * visible).max()) for p in parts),
        weight_max_abs=max(float((p.found.weights - p.expected.weights).abs().max()) for p in parts),
        output_max_abs=max(float(error.abs().max()) for error in output_errors),
        output_rmse=(output_energy / sum(error.numel() for error in output_errors)) ** 0.5,
        output_relative=(output_energy / expected_energy) ** 0.5,
    )


def _reconstruction(exact: DecodeView, stored: DecodeView) -> tuple[Tensor, Tensor]:
    """Error and signal of the tokens that the last query reads from codes."""
    tokens = slice(stored.first_stored, stored.boundaries[-1])
    signal = exact.exact[:, :, tokens]
    return stored.stored[:, :, tokens] - signal, signal
