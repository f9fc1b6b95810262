"""The figures of one row, from what the product stored, with torch: attention in float64, errors, bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvassay.experiments.attention_error_codecs import StoredPair, StoredSide

Figure = float | int | None


class TorchInputs(NamedTuple):
    """float64 `[8, 32]`, `[N, 32]`, `[N, 32]`."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class TorchAttention(NamedTuple):
    scores: Tensor
    weights: Tensor
    output: Tensor


class Measured(NamedTuple):
    figures: dict[str, Figure]
    """MEASURE_COLUMNS of the plan."""
    output: Tensor
    """Attention output of the decoded arrays, `[8, 32]`."""


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> TorchAttention:
    """Non-causal softmax(q k^T / sqrt(width)) v."""
    scores = queries @ keys.T / queries.shape[1] ** 0.5
    weights = torch.softmax(scores, dim=1)
    return TorchAttention(scores, weights, weights @ values)


def measure_pair(inputs: TorchInputs, stored: StoredPair) -> Measured:
    """Errors, their split and the bytes of one stored pair."""
    queries, keys, values = inputs
    reference = attend(queries, keys, values)
    both = attend(queries, stored.keys.decoded, stored.values.decoded)
    keys_only = attend(queries, stored.keys.decoded, values)
    values_only = attend(queries, keys, stored.values.decoded)
    error = both.output - reference.output
    figures: dict[str, Figure] = {
        "output_max_abs": _max_abs(error),
        "output_rmse": _rms(error),
        "output_relative": float(error.norm() / reference.output.norm()),
        "reference_max_abs": _max_abs(reference.output),
        "output_keys_only_max_abs": _max_abs(keys_only.output - reference.output),
        "output_values_only_max_abs": _max_abs(values_only.output - reference.output),
        "score_max_abs": _max_abs(both.scores - reference.scores),
        "weight_max_abs": _max_abs(both.weights - reference.weights),
    }
    figures |= {f"keys_{name}": figure for name, figure in side_figures(keys, stored.keys).items()}
    figures |= {f"values_{name}": figure for name, figure in side_figures(values, stored.values).items()}
    figures |= ratio_figures(keys.numel() + values.numel(), stored.keys.nbytes + stored.values.nbytes)
    return Measured(figures, both.output)


def side_figures(x: Tensor, side: StoredSide) -> dict[str, Figure]:
    """SIDE_COLUMNS of the plan: array error of K or V, split into rounding, scale precision and clipping."""
    coded = x[side.exact.shape[0] :]
    codes, scales = side.codes.double(), side.scales.double()
    error = side.decoded[side.exact.shape[0] :] - coded
    clipped = (coded / scales).round().abs() > 127
    assert int(clipped.sum()) == side.clipped_values, "the codec counts the values that its clamp changed"
    inside = ~clipped
    return {
        "rmse": _rms(side.decoded - x),
        "max_abs": _max_abs(side.decoded - x),
        "rounding_max_abs": _max_abs((codes * side.ideal_scales - coded)[inside]),
        "scale_precision_max_abs": _max_abs((codes * (scales - side.ideal_scales))[inside]),
        "error_steps": _max_abs((error / scales)[inside]),
        "clipped": side.clipped_values,
        "clipping_max_abs": _max_abs(error[clipped]) if side.clipped_values else None,
        "codes_nbytes": side.codes.nbytes,
        "scales_nbytes": side.scales.nbytes,
        "exact_nbytes": side.exact.nbytes,
    }


def ratio_figures(elements: int, stored_nbytes: int) -> dict[str, Figure]:
    """BYTE_RATIO_COLUMNS of the plan for `elements` values of K and V together."""
    float32_nbytes, float16_nbytes = 4 * elements, 2 * elements
    return {
        "stored_nbytes": stored_nbytes,
        "float32_nbytes": float32_nbytes,
        "float16_nbytes": float16_nbytes,
        "float32_over_stored": float32_nbytes / stored_nbytes,
        "float16_over_stored": float16_nbytes / stored_nbytes,
        "saved_of_float32_percent": 100 * (1 - stored_nbytes / float32_nbytes),
        "saved_of_float16_percent": 100 * (1 - stored_nbytes / float16_nbytes),
    }


def _max_abs(x: Tensor) -> float:
    return float(x.abs().max())


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())
