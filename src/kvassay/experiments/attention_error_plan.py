"""What the attention-error experiment runs: its matrix, its variants, the columns of its tables. Data only.

Source: the tutorial "KV quantization: how many bytes, and at what error?" (hohoo-ai-lab, experiment 10) at
commit 02a2660e22c969e70e3a6f095003614a7dfa448e. The tutorial states the matrix of 36 rows; width of the query
block, seeds and order of the draws were found by reproducing its figures.
"""

from __future__ import annotations

from typing import NamedTuple

EXPERIMENT = "attention-error"
EXPERIMENT_VERSION = 1
"""Raised when a rerun would give other numbers, columns, files or another summary: the audit compares all
of them."""

SEEDS = (7, 19, 41)
LENGTHS = (64, 256, 1024)
"""Tokens N, in the order in which one generator a seed draws them."""
WIDTH = 32
"""Channels of a query, key and value row."""
QUERY_ROWS = 8
OUTLIER_FACTOR = 40.0
"""The 40x input multiplies element [0, 0] of both K and V by this."""

NORMAL = "normal"
OUTLIER = "outlier40"
INPUTS = (NORMAL, OUTLIER)

TENSOR = "int8-tensor"
ROW = "int8-token-head"
QUANTIZERS = (TENSOR, ROW)
"""Names of the product's formats. With one KV head, one scale a token and head is the tutorial's one scale
a row."""
QUANTIZER_TITLES = {TENSOR: "one scale a tensor", ROW: "one scale a row"}

CHANNEL_KEYS = "channel-keys"
EXACT_OUTLIER_ROW = "exact-outlier-row"
STALE_SCALE = "stale-scale"
VARIANTS = (CHANNEL_KEYS, EXACT_OUTLIER_ROW, STALE_SCALE)
"""Beside the 36 rows, on the 40x input only, in a table of their own."""
VARIANT_TITLES = {
    CHANNEL_KEYS: "K one scale a channel, V one scale a row",
    EXACT_OUTLIER_ROW: "one scale a row, row 0 of K and V kept in float32",
    STALE_SCALE: "one scale a tensor, calibrated on the normal input",
}


class Cell(NamedTuple):
    """One pair of inputs (K, V) with its queries. `name` is the stem of its file of arrays."""

    seed: int
    n_tokens: int
    input: str

    @property
    def name(self) -> str:
        return f"seed{self.seed}-n{self.n_tokens}-{self.input}"

    @property
    def path(self) -> str:
        return f"arrays/{self.name}.safetensors"


CELLS = tuple(Cell(seed, n, kind) for seed in SEEDS for n in LENGTHS for kind in INPUTS)


def variant_format(variant: str, n_tokens: int) -> str:
    """The product's format string of a variant. The per-channel scale spans all N tokens, so N is its
    group."""
    match variant:
        case "channel-keys":
            return f"k=int8:channel{n_tokens}/scale=f32,v=int8:token-head"
        case "exact-outlier-row":
            return f"{ROW},sinks=1,exact=f32"
        case "stale-scale":
            return TENSOR
        case _:
            raise AssertionError(variant)


ROW_KEY: dict[str, str] = {"seed": "int64", "n_tokens": "int64", "input": "string", "quantizer": "string"}
VARIANT_KEY: dict[str, str] = {"seed": "int64", "n_tokens": "int64", "input": "string", "variant": "string"}

ERROR_COLUMNS: dict[str, str] = {
    "output_max_abs": "float64",
    "output_rmse": "float64",
    "output_relative": "float64",
    "reference_max_abs": "float64",
    "output_keys_only_max_abs": "float64",
    "output_values_only_max_abs": "float64",
    "score_max_abs": "float64",
    "weight_max_abs": "float64",
}
"""Attention against float64: `output_relative` is ||output - reference|| / ||reference|| (Frobenius); the
last two compare q.k/sqrt(32) and its softmax. `keys_only` keeps V exact, `values_only` keeps K exact."""

SIDE_COLUMNS: dict[str, str] = {
    "rmse": "float64",
    "max_abs": "float64",
    "rounding_max_abs": "float64",
    "scale_precision_max_abs": "float64",
    "error_steps": "float64",
    "clipped": "int64",
    "clipping_max_abs": "float64",
    "codes_nbytes": "int64",
    "scales_nbytes": "int64",
    "exact_nbytes": "int64",
}
"""One side (K or V), x_hat = codes * scale. With the unrounded scale s* = max|x|/127 the error of a value
splits into `rounding` = codes * s* - x and `scale_precision` = codes * (scale - s*). `error_steps` is
|x_hat - x| / scale, at most a half. All three leave out clipped values, whose largest error is
`clipping_max_abs` (null where none was clipped)."""

BYTE_RATIO_COLUMNS: dict[str, str] = {
    "stored_nbytes": "int64",
    "float32_nbytes": "int64",
    "float16_nbytes": "int64",
    "float32_over_stored": "float64",
    "float16_over_stored": "float64",
    "saved_of_float32_percent": "float64",
    "saved_of_float16_percent": "float64",
}
"""`stored` = codes, scales and rows kept exact, K and V together, summed from the arrays; the denominators
are the same number of values in 32 and in 16 bits, not the float64 arrays that the errors are measured
against."""

MEASURE_COLUMNS: dict[str, str] = {
    **ERROR_COLUMNS,
    **{f"{side}_{name}": kind for side in ("keys", "values") for name, kind in SIDE_COLUMNS.items()},
    **BYTE_RATIO_COLUMNS,
}
ROW_COLUMNS = {**ROW_KEY, **MEASURE_COLUMNS}
VARIANT_COLUMNS = {**VARIANT_KEY, "format": "string", **MEASURE_COLUMNS}

BYTES_COLUMNS: dict[str, str] = {
    "n_tokens": "int64",
    "quantizer": "string",
    "keys_codes_nbytes": "int64",
    "keys_scales_nbytes": "int64",
    "values_codes_nbytes": "int64",
    "values_scales_nbytes": "int64",
    **BYTE_RATIO_COLUMNS,
    "nominal_float32_over_codes": "float64",
}
"""One row a length and quantizer. `nominal_float32_over_codes` is the "fourfold" that leaves the scales
out."""

EXERCISE_COLUMNS: dict[str, str] = {
    "start": "string",
    "quantizer": "string",
    "scales": "int64",
    "scales_changed": "int64",
    "first_scale_before": "float64",
    "first_scale_after": "float64",
    "last_scale_before": "float64",
    "last_scale_after": "float64",
    "rows_with_changed_codes": "int64",
}
"""K of `EXERCISE_TOKENS` rows before and after its element [0, 0] is enlarged to or by 40."""
EXERCISE_TOKENS = 64
EXERCISE_STARTS = ("zeros", "seed 7")
"""All-zero keys whose element [0, 0] becomes 40, then the keys of seed 7, N = 64 whose element [0, 0]
grows 40-fold."""

TABLES: dict[str, dict[str, str]] = {
    "rows": ROW_COLUMNS,
    "variants": VARIANT_COLUMNS,
    "bytes": BYTES_COLUMNS,
    "exercise": EXERCISE_COLUMNS,
}
"""Each table is written as `NAME.parquet` and `NAME.csv`."""

SIDES = ("keys", "values")

SYNTHETIC_LABEL = (
    "Synthetic data: standard normal arrays, in half of the rows with one element enlarged 40-fold. "
    "They say nothing of the distribution of real keys and values."
)
EXCLUSIONS = (
    "Bytes are those of the stored arrays (codes, scales, rows kept exact). Array object headers, allocator "
    "rounding, page padding, block tables and conversion buffers are excluded.",
    "The byte denominators are float32 and 16 bit; the numerical reference of the errors is float64.",
)
NOT_PROVEN = (
    "Codes are dequantized to float64 before attention: nothing here shows a lower peak memory or a higher throughput.",
    "An array error does not replace the attention-output error, and neither replaces the quality of a task.",
    "K and V use the same simple quantizer in the 36 rows, as a baseline. It is not KIVI (2 bit, K per "
    "channel), and no result of any paper is claimed for it.",
    "Absolute errors grow with the size of the output; the relative error stands beside each.",
    "A decision needs calibration on real distributions, task quality, dequantization cost, peak device "
    "memory and an end-to-end measurement; `kvassay assess` measures a model.",
)
