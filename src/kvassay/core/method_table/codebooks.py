"""Codebooks: midpoint grids, Lloyd-Max, Lloyd-Max with a sign sketch of the residual, NF4 with sparse outliers."""

from __future__ import annotations

from collections.abc import Callable

from kvassay.core.geometry import Owner
from kvassay.core.layout import code_stream, scale_stream, scaled_layout
from kvassay.core.methods import Family, InPlace, Method, Option, Stream, Word, Working
from kvassay.core.spec import Granularity, OptionValue, QuantSpec
from kvassay.errors import GeometryError

_ROW = (Granularity.TOKEN_HEAD, Granularity.GROUP)


def _midpoint_working(spec: QuantSpec) -> Working:
    return Working(12.1, 8 if spec.num_bits == 8 else 9.1)


def _midpoint_in_place(spec: QuantSpec) -> InPlace:
    return InPlace.CHANNELS if spec.num_bits in (2, 4, 8) else InPlace.NO


MIDPOINT = Method(
    name="midpoint",
    family=Family.ROTATED,
    summary="uniform grid of cell centres between plus and minus the absmax of a group; no level at zero",
    source="mid-rise uniform quantizer (Gersho and Gray 1992, section 5.2); exllamav3's cache grid, unrotated",
    codec="kvassay.formats.exl3:MidpointQuantizer",
    words=tuple(Word(f"midpoint-{bits}", bits, _ROW, scale_dtype="float16") for bits in range(1, 9)),
    examples=(
        "midpoint-8:token-head",
        "midpoint-4:group32",
        "midpoint-4:group32/had=32",
        "midpoint-3:group64/scale=f32",
        "midpoint-2:group32",
    ),
    in_place=_midpoint_in_place,
    working=_midpoint_working,
    error_bound="|x − x̂| <= scale / 2^bits, with the scale as it is stored",
)


def _below_one(value: OptionValue) -> bool:
    return isinstance(value, float) and 0 <= value < 1


def _up_to_64(value: OptionValue) -> bool:
    return isinstance(value, int) and 0 <= value <= 64


def _one_of(*choices: str) -> Callable[[OptionValue], bool]:
    return lambda value: value in choices


def _exl3_working(spec: QuantSpec) -> Working:
    return Working(17.1 if spec.option("compand") else 16.1, 20 + (spec.num_bits < 8), cast_nbytes=0)


def _exl3_in_place(spec: QuantSpec) -> InPlace:
    """Companded codes are looked up, and tables have up to 16 levels."""
    return InPlace.BASIS if spec.num_bits in ((2, 4) if spec.option("compand") else (2, 4, 8)) else InPlace.NO


EXL3 = Method(
    name="exl3",
    family=Family.ROTATED,
    summary="exllamav3's cache: groups of 32, Hadamard 32, absmax, midpoint grid, float16 scale",
    source="exllamav3, exllamav3_ext/cache/q_cache_kernels.cuh (quant_block_x4, dequant_block_x4) and lmq.cuh",
    codec="kvassay.formats.exl3:Exl3Quantizer",
    words=tuple(
        Word(f"exl3-{bits}", bits, fixed=(Granularity.GROUP, 32), scale_dtypes=("float16",)) for bits in range(2, 9)
    ),
    examples=(
        "exl3-8",
        "exl3-7",
        "exl3-6",
        "exl3-5",
        "exl3-4",
        "exl3-4/compand=0.65",
        "exl3-4/had/seed=2",
        "exl3-3",
        "exl3-2",
    ),
    options=(
        Option(
            "compand",
            0.0,
            "the compander's share of the linear term, from 0 (no compander) to below 1; exllamav3's own curve is 0.65",
            _below_one,
        ),
    ),
    rotates=True,
    # The rotation of groups makes the float32 copy that 16-bit values need anyway.
    in_place=_exl3_in_place,
    working=_exl3_working,
    error_bound="root mean square of x − x̂ over a group <= scale · (c / 2^bits + 2^-11), with the scale as it is "
    "stored; c = 1, or 3 − 2 · compand with a compander",
)


def _lloyd_in_place(spec: QuantSpec) -> InPlace:
    """A row that keeps its norm is scaled by a sum over all its codes."""
    return InPlace.CHANNELS if spec.num_bits in (2, 4) and spec.option("norm") != "preserved" else InPlace.NO


LLOYD = Method(
    name="lloyd",
    family=Family.CODEBOOK,
    summary="one norm a row and the Lloyd-Max codebook of a Gaussian; meant for rotated values",
    source="TurboQuant (Zandieh et al. 2025, arXiv:2504.19874, section 3.1); HIGGS, scalar grid (arXiv:2411.17525)",
    codec="kvassay.formats.lloyd:LloydQuantizer",
    words=tuple(Word(f"lloyd-{bits}", bits, _ROW, scale_dtype="float16") for bits in range(1, 5)),
    examples=(
        "lloyd-4:token-head",
        "lloyd-4:token-head/had/seed=1",
        "lloyd-4:token-head/norm=corrected",
        "lloyd-4:token-head/norm=preserved",
        "lloyd-4:group32/scale=f32/norm=corrected",
        "lloyd-3:token-head/had/seed=1/norm=preserved",
        "lloyd-3:group64",
        "lloyd-2:token-head/scale=f32",
        "lloyd-1:token-head",
    ),
    options=(
        Option(
            "norm",
            "plain",
            "plain (the row's norm), corrected (the least-squares factor) or preserved (decoded rows keep the norm)",
            _one_of("plain", "corrected", "preserved"),
        ),
    ),
    in_place=_lloyd_in_place,
    working=Working(13, 13),
    error_bound="none in steps, since the outer cells are open; plain: |x − x̂| <= n · max(g, √D − c) / √D, with the "
    "norm n of the D values, half the codebook's widest gap g and its last level c; corrected: ‖x − x̂‖ <= n; "
    "preserved: ‖x − x̂‖ <= √2 · n",
)


def _sketched_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """Codes of b − 1 bits, then one sign a channel, then the norms of the row and of its residual."""
    codes = code_stream(spec.model_copy(update={"num_bits": spec.num_bits - 1}), kv_heads, dim)
    signs = code_stream(spec.model_copy(update={"num_bits": 1}), kv_heads, dim)._replace(name="signs")
    scales = scale_stream(spec, kv_heads, dim)
    return codes, signs, scales, scales._replace(name="residual_norms")


def _sketched_working(spec: QuantSpec) -> Working:
    return Working(17 if spec.option("sketch") == "gaussian" else 13, 21)


LLOYD_QJL = Method(
    name="lloyd-qjl",
    family=Family.CONTROL,
    summary="Lloyd-Max of one bit less, and one sign a channel of the sketched residual: unbiased, and worse",
    source="QJL (Zandieh et al. 2024, arXiv:2406.03482, section 3); TurboQuant-prod (arXiv:2504.19874, section 3.2)",
    codec="kvassay.formats.qjl:LloydQjlQuantizer",
    words=tuple(
        Word(f"lloyd-qjl-{bits}", bits, (Granularity.TOKEN_HEAD,), scale_dtype="float16") for bits in range(2, 6)
    ),
    examples=(
        "lloyd-qjl-4:token-head",
        "lloyd-qjl-4:token-head/had/seed=1",
        "lloyd-qjl-4:token-head/sketch=identity",
        "lloyd-qjl-3:token-head",
        "lloyd-qjl-2:token-head/scale=f32",
    ),
    layout=_sketched_layout,
    options=(
        Option(
            "sketch",
            "gaussian",
            "gaussian (QJL's random matrix) or identity (the signs of the residual itself)",
            _one_of("gaussian", "identity"),
        ),
    ),
    working=_sketched_working,
    error_bound="with the residual norm ρ as it is stored; gaussian: no bound, since the sketch is a draw: right on "
    "average, with ‖x − x̂‖² of π/2 · ρ² on average; identity: ‖x − x̂‖ <= √2 · ρ",
)


def _sparse_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """The dense part, then the channel and the value of each outlier."""
    dense = scaled_layout(spec, kv_heads, dim)
    outliers = int(spec.option("outliers"))
    if outliers >= dim:
        raise GeometryError(f"{outliers} outliers a row leave nothing of head_dim {dim}; use outliers={dim // 100 + 1}")
    if not outliers:
        return dense
    assert spec.scale_dtype is not None, "the grammar gives every granularity a scale dtype"
    shape = (spec.tokens_per_block, outliers)
    channels = Stream("outlier_channels", Owner.CODES, "uint8" if dim <= 256 else "uint16", kv_heads, shape)
    return *dense, channels, Stream("outliers", Owner.CODES, spec.scale_dtype, kv_heads, shape)


def _nf4_in_place(spec: QuantSpec) -> InPlace:
    return InPlace.NO if spec.option("outliers") else InPlace.CHANNELS


def _nf4_working(spec: QuantSpec) -> Working | None:
    return None if spec.option("outliers") else Working(13, 13)


NF4 = Method(
    name="nf4",
    family=Family.SPARSE,
    summary="NF4 codebook over the absmax or the range of a group; optionally K values a row stored as floats",
    source="NF4: QLoRA (arXiv:2305.14314, appendix E); dense and sparse: KVQuant (arXiv:2401.18079, section 3)",
    codec="kvassay.formats.nf4:Nf4Quantizer",
    words=(Word("nf4", 4, (*_ROW, Granularity.CHANNEL), may_flip=True, scale_dtype="float16"),),
    examples=(
        "nf4:group64",
        "nf4:group64/asym",
        "nf4:group64/outliers=1",
        "nf4:token-head/asym/outliers=2",
        "nf4:token-head/had/seed=1/scale=f32",
        "nf4:channel32/asym/outliers=1",
        "nf4:channel32/scale=bf16",
    ),
    layout=_sparse_layout,
    options=(
        Option(
            "outliers",
            0,
            "how many values of each token's row of channels are stored as floats: 0 to 64",
            _up_to_64,
        ),
    ),
    # Sorting outliers out copies channels' groups or not, as they lie.
    in_place=_nf4_in_place,
    working=_nf4_working,
    error_bound="|x − x̂| <= 0.152 · scale, with the scale as it is stored: half the widest gap of the codebook; "
    "an outlier errs by its rounding to the dtype of the scale",
)

ROWS = (MIDPOINT, EXL3, LLOYD, LLOYD_QJL, NF4)
