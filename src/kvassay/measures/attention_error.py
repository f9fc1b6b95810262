"""Errors of captured keys and values, and of what attention makes of them, against float64 (R42, R43, R50, R81, R82).

For each layer the real queries of a document attend to the exact keys and values in float64, and again with keys,
values or both replaced by what a cache of the format would hand to each query. Nothing of the reference is rounded: the
captured arrays are taken as they are. A small error of the array can become a large one of scores and softmax weights
(keys), or go straight into the weighted sum (values), so all are shown, and for each KV head alone: a mean over heads
would hide the one that broke.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.cache.cohorts import LayerCalibration, SideCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import HeadGroup, KVFormat, SidePlan, head_groups
from kvassay.engines.transformers.decode_attention import (
    AttentionParts,
    AttentionRule,
    attention_output,
    attention_weights,
    query_heads_of,
    visible_tokens,
)
from kvassay.engines.transformers.decode_scorer import LayerAttention
from kvassay.engines.transformers.decode_view import DecodeView, EncodeCounts, decode_view

QUERIES_AT_ONCE = 64
"""Scores of one chunk are in memory at once, several times over."""


class Errors(NamedTuple):
    """Of one array against its exact twin. None where there was nothing to compare."""

    rmse: float | None
    max_abs: float | None
    relative: float | None
    """Root of error energy over signal energy; None also where the signal is zero and the error is not."""


class CellErrors(NamedTuple):
    """One KV head of one layer with the keys, the values, or both replaced by decoded codes."""

    layer: int
    head: int
    substituted: str
    """`keys`, `values` or `both`."""
    reconstruction: Errors
    """Of the replaced array, over the stored tokens that some measured query sees; of `both`, the worse side."""
    score: Errors
    """Scaled logits before soft cap and mask, over the tokens that each query sees."""
    weight: Errors
    output: Errors
    """Of the query heads that read this KV head."""
    stored_reads: int
    """Older tokens read from codes, summed over the measured queries; of `both`, of the side that read more."""


class FormatErrors(NamedTuple):
    cells: list[CellErrors]
    counts: EncodeCounts


class MeasuredFormat(NamedTuple):
    """A format to measure, with the static arrays of the observed layer."""

    kv_format: KVFormat
    calibration: LayerCalibration | None = None
    key_transform: KeyTransform | None = None
    """Of the observed layer; for formats that remove bias or rotary embedding."""


class _Views(NamedTuple):
    keys: DecodeView
    values: DecodeView


class _Sum:
    """Error and signal of several chunks, by KV head. Chunks are `[kv_heads, anything]`."""

    def __init__(self, kv_heads: int) -> None:
        self._error, self._signal, self._largest = (torch.zeros(kv_heads, dtype=torch.float64) for _ in range(3))
        self._elements = 0

    def add(self, found: Tensor, expected: Tensor, elements: int | None = None) -> _Sum:
        """`elements` of a head, where some entries are masked and zero in both."""
        error = found - expected
        if error.numel():
            self._error += error.square().sum(1)
            self._signal += expected.square().sum(1)
            self._largest = torch.maximum(self._largest, error.abs().amax(1))
            self._elements += error.shape[1] if elements is None else elements
        return self

    def errors(self, head: int) -> Errors:
        if not self._elements:
            return Errors(None, None, None)
        error, signal = float(self._error[head]), float(self._signal[head])
        relative = (error / signal) ** 0.5 if signal else None if error else 0.0
        return Errors((error / self._elements) ** 0.5, float(self._largest[head]), relative)


@torch.inference_mode()
def attention_errors(
    observed: LayerAttention, formats: Sequence[MeasuredFormat], geometry: CacheGeometry, queries: int
) -> list[FormatErrors]:
    """Errors of one layer for each format, of the last `queries` queries: each KV head with each substitution.

    Sides that a format stores as plain floats have their rounding error only.
    """
    measured = observed.queries[:, :, -queries:].double()
    first = observed.keys.shape[2] - measured.shape[2]
    exact_of: dict[tuple[int, ...], tuple[_Views, list[AttentionParts]]] = {}
    found = []
    for one in formats:
        cells: list[CellErrors] = []
        counts = [0, 0]
        groups = head_groups(one.kv_format, observed.layer, geometry.layers[observed.layer])
        calibration = one.calibration or ((None, None),) * len(groups)
        for group, sides in zip(groups, calibration, strict=True):
            chosen = query_heads_of(group.heads, measured.shape[1] // observed.keys.shape[1])
            own, rule = measured[:, chosen], observed.rule
            if rule.sink_logits is not None:
                rule = rule._replace(sink_logits=rule.sink_logits[chosen].double())
            if group.heads not in exact_of:  # all formats are measured against one exact attention
                views = _exact_views(observed, group)
                exact_of[group.heads] = views, list(_parts(own, views.keys, views.values, first, rule))
            exact, expected = exact_of[group.heads]
            stored = _stored_views(one, group, sides, exact, observed.layer)
            for view in stored:
                counts[0] += view.counts.encoded_values
                counts[1] += view.counts.clipped_values
            cells += _group_cells(observed.layer, group, own, exact, stored, expected, first, rule)
        order = {"keys": 0, "values": 1, "both": 2}
        cells.sort(key=lambda cell: (cell.head, order[cell.substituted]))
        found.append(FormatErrors(cells, EncodeCounts(*counts)))
    return found


def _parts(
    queries: Tensor, keys: DecodeView, values: DecodeView, first: int, rule: AttentionRule
) -> Iterator[AttentionParts]:
    for start in range(0, queries.shape[2], QUERIES_AT_ONCE):
        scores, weights = attention_weights(queries[:, :, start : start + QUERIES_AT_ONCE], keys, first + start, rule)
        yield AttentionParts(scores, weights, attention_output(weights, values, first + start))


def _group_cells(
    layer: int,
    group: HeadGroup,
    queries: Tensor,
    exact: _Views,
    stored: _Views,
    expected: list[AttentionParts],
    first: int,
    rule: AttentionRule,
) -> Iterator[CellErrors]:
    heads, names = group.num_heads, ("keys", "values", "both")
    read = _Views(_or_exact(stored.keys, exact.keys), _or_exact(stored.values, exact.values))
    score, weight = _Sum(heads), _Sum(heads)
    output = {name: _Sum(heads) for name in names}
    starts = range(0, queries.shape[2], QUERIES_AT_ONCE)
    for start, exact_parts in zip(starts, expected, strict=True):
        begin = first + start
        chunk = queries[:, :, start : start + QUERIES_AT_ONCE]
        visible = visible_tokens(begin, begin + chunk.shape[2] - 1, rule.sliding_window, chunk.device)
        scores, weights = attention_weights(chunk, read.keys, begin, rule)
        elements = int(visible.sum()) * scores.shape[2]
        score.add(_by_head(scores * visible), _by_head(exact_parts.scores * visible), elements)
        weight.add(_by_head(weights), _by_head(exact_parts.weights), elements)
        for name, found in (
            ("keys", attention_output(weights, exact.values, begin)),
            ("values", attention_output(exact_parts.weights, read.values, begin)),
            ("both", attention_output(weights, read.values, begin)),
        ):
            output[name].add(_by_head(found, heads), _by_head(exact_parts.output, heads))
    window = rule.sliding_window
    arrays = {
        "keys": _reconstruction(exact.keys, stored.keys, first, window),
        "values": _reconstruction(exact.values, stored.values, first, window),
    }
    reads = {
        "keys": _reads(stored.keys, group.keys, first, window),
        "values": _reads(stored.values, group.values, first, window),
    }
    unmoved = Errors(0.0, 0.0, 0.0)  # values take no part in scores and weights
    for index, head in enumerate(group.heads):
        sides = {side: array.errors(index) for side, array in arrays.items()}
        for name in names:
            both, moved = name == "both", name != "values"
            yield CellErrors(
                layer=layer,
                head=head,
                substituted=name,
                reconstruction=_worse(sides["keys"], sides["values"]) if both else sides[name],
                score=score.errors(index) if moved else unmoved,
                weight=weight.errors(index) if moved else unmoved,
                output=output[name].errors(index),
                stored_reads=max(reads.values()) if both else reads[name],
            )


def _by_head(array: Tensor, kv_heads: int | None = None) -> Tensor:
    """`[1, kv_heads, ...]`, or `[1, query_heads, ...]` with `kv_heads` given, as `[kv_heads, anything]`."""
    return array.reshape(array.shape[1] if kv_heads is None else kv_heads, -1)


def _exact_views(observed: LayerAttention, group: HeadGroup) -> _Views:
    """The captured sides as float64, of which nothing is stored."""
    heads = list(group.heads)

    def view(side: Tensor) -> DecodeView:
        array = side[:, heads].double()
        return DecodeView(array, array, 0, (0,) * array.shape[2], EncodeCounts(0, 0))

    return _Views(view(observed.keys), view(observed.values))


def _stored_views(
    measured: MeasuredFormat, group: HeadGroup, calibration: SideCalibration, exact: _Views, layer: int
) -> _Views:
    """The sides as a cache of the format hands them to each query."""
    dtype = measured.kv_format.exact_dtype
    transform = None if measured.key_transform is None else measured.key_transform.for_heads(group.heads)
    return _Views(
        decode_view(exact.keys.exact, group.keys, dtype, calibration[0], f"keys of layer {layer}", transform),
        decode_view(exact.values.exact, group.values, dtype, calibration[1], f"values of layer {layer}"),
    )


def _or_exact(view: DecodeView, exact: DecodeView) -> DecodeView:
    """The exact view for a side that is left as it is: another order of summation would differ in the last bit."""
    return exact if torch.equal(view.exact, exact.exact) and torch.equal(view.stored, exact.exact) else view


def _reconstruction(exact: DecodeView, stored: DecodeView, first: int, window: int | None) -> _Sum:
    """Over the tokens that the last query reads from codes, from the first token on that some measured query sees."""
    seen = 0 if window is None else max(0, first - window + 1)
    tokens = slice(max(stored.first_stored, seen), stored.boundaries[-1])
    signal = exact.exact[:, :, tokens]
    return _Sum(signal.shape[1]).add(_by_head(stored.stored[:, :, tokens]), _by_head(signal))


def _reads(view: DecodeView, plan: SidePlan, first: int, window: int | None) -> int:
    if plan.spec.is_exact:
        return 0
    reads = 0
    for position in range(first, len(view.boundaries)):
        begin = view.first_stored if window is None else max(view.first_stored, position - window + 1)
        reads += max(0, min(view.boundaries[position], position) - begin)
    return reads


def _worse(keys: Errors, values: Errors) -> Errors:
    """Figure by figure: energies of both sides together would hide small values behind large keys."""
    return Errors(*(max((x for x in pair if x is not None), default=None) for pair in zip(keys, values, strict=True)))
