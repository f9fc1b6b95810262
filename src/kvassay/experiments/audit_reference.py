"""The attention-error experiment again in plain NumPy float64: inputs, quantizer, attention, all figures.

Written from the tutorial's formulas and not from the product's codecs, so that the two can be compared.
Shapes: queries `[8, 32]`, keys and values `[N, 32]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.experiments.attention_error_plan import LENGTHS, OUTLIER, OUTLIER_FACTOR, QUERY_ROWS, WIDTH, Cell

F64 = NDArray[np.float64]
LARGEST_CODE = 127
Number = float | int | None


class Inputs(NamedTuple):
    queries: F64
    keys: F64
    values: F64


class Side(NamedTuple):
    """K or V as stored: int8 codes `[rows, 32]`, float32 scales that broadcast over them, and leading rows
    kept exact.

    `exact` is float32 `[sinks, 32]`; the codes stand for the rows after them.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    exact: NDArray[np.float32]

    @property
    def decoded(self) -> F64:
        """x_hat = codes * scale in float64, `[N, 32]`."""
        rest = self.codes.astype(np.float64) * self.scales.astype(np.float64)
        return np.concatenate([self.exact.astype(np.float64), rest])


class Attention(NamedTuple):
    scores: F64
    weights: F64
    output: F64


def inputs_from_seed(seed: int) -> Iterator[tuple[int, Inputs]]:
    """(N, inputs) for each length, from one generator that goes on across the lengths: Q, then K, then V."""
    generator = np.random.default_rng(seed)
    for n_tokens in LENGTHS:
        queries = generator.standard_normal((QUERY_ROWS, WIDTH))
        keys = generator.standard_normal((n_tokens, WIDTH))
        values = generator.standard_normal((n_tokens, WIDTH))
        yield n_tokens, Inputs(queries, keys, values)


def with_outlier(inputs: Inputs) -> Inputs:
    """A copy whose first element of K and of V is multiplied by 40."""
    keys, values = inputs.keys.copy(), inputs.values.copy()
    keys[0, 0] *= OUTLIER_FACTOR
    values[0, 0] *= OUTLIER_FACTOR
    return Inputs(inputs.queries, keys, values)


def inputs_of(cell: Cell) -> Inputs:
    """The inputs of one cell, drawn anew from its seed."""
    normal = dict(inputs_from_seed(cell.seed))[cell.n_tokens]
    return with_outlier(normal) if cell.input == OUTLIER else normal


def ideal_scales(x: F64, axis: int | None) -> F64:
    """max|x| / 127 in float64; `axis` None shares it over the array, 1 over a row, 0 over a channel."""
    return np.abs(x).max(axis=axis, keepdims=True) / LARGEST_CODE


def stored_scales(ideal: F64) -> NDArray[np.float32]:
    """Rounded to float32; one where that is zero, be it a zero group or one whose scale underflows (R70)."""
    scales = ideal.astype(np.float32)
    return np.where(scales == 0, np.float32(1), scales)


def quantize(x: F64, axis: int | None) -> Side:
    """Symmetric int8 (R67 to R71): round half to even, clip to ±127, never −128."""
    return quantize_with(x, stored_scales(ideal_scales(x, axis)))


def quantize_with(x: F64, scales: NDArray[np.float32]) -> Side:
    """Codes of `x` against scales that are given, as with a calibrated (and perhaps stale) range."""
    steps = np.rint(x / scales.astype(np.float64))
    codes = np.clip(steps, -LARGEST_CODE, LARGEST_CODE).astype(np.int8)
    return Side(codes, scales, np.empty((0, x.shape[1]), np.float32))


def attention(queries: F64, keys: F64, values: F64) -> Attention:
    """softmax(q k^T / sqrt(width)) v, non-causal, in float64."""
    scores = queries @ keys.T / np.sqrt(WIDTH)
    unnormalized = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = unnormalized / unnormalized.sum(axis=1, keepdims=True)
    return Attention(scores, weights, weights @ values)


def measure(inputs: Inputs, keys: Side, values: Side, ideal_keys: F64, ideal_values: F64) -> dict[str, Number]:
    """All of MEASURE_COLUMNS for one pair of stored sides."""
    queries = inputs.queries
    reference = attention(queries, inputs.keys, inputs.values)
    both = attention(queries, keys.decoded, values.decoded)
    keys_only = attention(queries, keys.decoded, inputs.values)
    values_only = attention(queries, inputs.keys, values.decoded)
    error = both.output - reference.output
    return {
        "output_max_abs": _max_abs(error),
        "output_rmse": _rms(error),
        "output_relative": _rms(error) / _rms(reference.output),
        "reference_max_abs": _max_abs(reference.output),
        "output_keys_only_max_abs": _max_abs(keys_only.output - reference.output),
        "output_values_only_max_abs": _max_abs(values_only.output - reference.output),
        "score_max_abs": _max_abs(both.scores - reference.scores),
        "weight_max_abs": _max_abs(both.weights - reference.weights),
        **{f"keys_{name}": figure for name, figure in measure_side(inputs.keys, keys, ideal_keys).items()},
        **{f"values_{name}": figure for name, figure in measure_side(inputs.values, values, ideal_values).items()},
        **byte_ratios(inputs.keys.size + inputs.values.size, side_nbytes(keys) + side_nbytes(values)),
    }


def measure_side(x: F64, side: Side, ideal: F64) -> dict[str, Number]:
    """SIDE_COLUMNS: the error of one side, split into rounding, scale precision and clipping."""
    error = side.decoded - x
    coded = x[len(side.exact) :]
    codes, scales = side.codes.astype(np.float64), side.scales.astype(np.float64)
    clipped = np.abs(np.rint(coded / scales)) > LARGEST_CODE
    inside = ~clipped
    coded_error = np.abs(codes * scales - coded)
    return {
        "rmse": _rms(error),
        "max_abs": _max_abs(error),
        "rounding_max_abs": _max_abs((codes * ideal - coded)[inside]),
        "scale_precision_max_abs": _max_abs((codes * (scales - ideal))[inside]),
        "error_steps": _max_abs((coded_error / scales)[inside]),
        "clipped": int(clipped.sum()),
        "clipping_max_abs": float(coded_error[clipped].max()) if clipped.any() else None,
        "codes_nbytes": side.codes.nbytes,
        "scales_nbytes": side.scales.nbytes,
        "exact_nbytes": side.exact.nbytes,
    }


def side_nbytes(side: Side) -> int:
    return side.codes.nbytes + side.scales.nbytes + side.exact.nbytes


def byte_ratios(elements: int, stored_nbytes: int) -> dict[str, Number]:
    """BYTE_RATIO_COLUMNS for `elements` values of K and V together."""
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


def _max_abs(x: F64) -> float:
    return float(np.abs(x).max())


def _rms(x: F64) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
