"""ggml's 32-value blocks, as llama.cpp stores its cache."""

from __future__ import annotations

from kvassay.core.layout import scaled_layout
from kvassay.core.methods import Family, InPlace, Method, Stream, Word, Working
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import GeometryError

BLOCK_SIZE = 32


def ggml_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """Codes, scales and minimums by block; raises GeometryError where blocks do not divide `dim`."""
    if dim % BLOCK_SIZE:
        group = next(size for size in (24, 20, 16, 12, 8, 4, 2, 1) if dim % size == 0)
        raise GeometryError(
            f"head_dim {dim} is not a multiple of the {BLOCK_SIZE} values of a {spec.method} block, which is fixed; "
            f"use int{spec.num_bits}:group{group} or int{spec.num_bits}:token-head"
        )
    return scaled_layout(spec, kv_heads, dim)


_HALF = "|x − x̂| <= scale / 2, plus |x| · 2^-11 for the scale's own rounding to float16"
_OPPOSITE = "|x − x̂| <= |scale| / 2, or |scale| for a value opposite to the group's largest, plus |x| · 2^-11"


_RANGE = "|x − x̂| <= scale / 2, plus (max − min + |min|) · 2^-11 for the rounding of scale and minimum to float16"
_TABLE = (
    "|x − x̂| <= 0.23 · max|x| of the block: half the widest gap of the table or the end that it lacks on one side, and "
    "what fitting the scale moves"
)


def _method(
    name: str,
    num_bits: int,
    codec: str,
    codes: str,
    *,
    error_bound: str,
    working: Working,
    symmetric: bool = True,
    in_place: InPlace = InPlace.NO,
) -> Method:
    code_dtype = "int8" if num_bits == 8 else "uint8"
    metadata = "float16 scale" if symmetric else "float16 scale and minimum"
    return Method(
        name=name,
        family=Family.GROUPED,
        summary=f"ggml block: 32 {codes}, {metadata}",
        source=f"ggml quantize_row_{name}_ref",
        codec=f"kvassay.formats.{codec}",
        words=(
            Word(
                name,
                num_bits,
                fixed=(Granularity.GROUP, BLOCK_SIZE),
                symmetric=symmetric,
                code_dtypes=(code_dtype, code_dtype),
                scale_dtypes=("float16",),
            ),
        ),
        examples=(name, f"{name}/had"),
        layout=ggml_layout,
        in_place=in_place,
        working=working,
        error_bound=error_bound,
    )


ROWS = (
    _method(
        "q8_0",
        8,
        "ggml_q8:Q8Quantizer",
        "signed 8-bit codes",
        error_bound=_HALF,
        working=Working(16, 8.1),
        in_place=InPlace.CHANNELS,
    ),
    _method(
        "q5_1", 5, "ggml_q5:Q5Quantizer", "5-bit codes", symmetric=False, error_bound=_RANGE, working=Working(8.2, 12.2)
    ),
    _method("q5_0", 5, "ggml_q5:Q5Quantizer", "5-bit codes", error_bound=_OPPOSITE, working=Working(8, 12.1)),
    # A byte holds values i and i + 16 of a block, which is a basis of its own.
    _method(
        "q4_1",
        4,
        "ggml_q4:Q4Quantizer",
        "4-bit codes",
        symmetric=False,
        error_bound=_RANGE,
        working=Working(8.2, 12.2),
        in_place=InPlace.BASIS,
    ),
    _method(
        "q4_0",
        4,
        "ggml_q4:Q4Quantizer",
        "4-bit codes",
        error_bound=_OPPOSITE,
        working=Working(8, 12.1),
        in_place=InPlace.BASIS,
    ),
    _method(
        "iq4_nl",
        4,
        "ggml_iq4:Iq4Quantizer",
        "4-bit codes into a table of 16 levels",
        error_bound=_TABLE,
        working=Working(29.1, 16.1),
        in_place=InPlace.BASIS,
    ),
)
