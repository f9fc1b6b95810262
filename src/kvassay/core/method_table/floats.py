"""Plain floats and float8."""

from __future__ import annotations

from kvassay.core.methods import EVERY_SCALE, Family, Method, Word

FLOAT = Method(
    name="float",
    family=Family.FLOAT,
    summary="values as they are, rounded to nearest even by the cast",
    source="IEEE 754-2019; bfloat16",
    codec="kvassay.formats.floating:FloatQuantizer",
    words=(
        Word("f32", 32, code_dtypes=("float32", "float32")),
        Word("f16", 16, code_dtypes=("float16", "float16")),
        Word("bf16", 16, code_dtypes=("bfloat16", "bfloat16")),
    ),
    examples=("f32", "f16", "bf16"),
    may_rotate=False,
    error_bound="|x − x̂| <= |x| · 2^-11 in f16 (at least 2^-25), |x| · 2^-8 in bf16, |x| · 2^-24 in f32",
)

FLOAT8 = Method(
    name="float8",
    family=Family.SCALED,
    summary="float8 elements, by plain cast or with an absmax scale",
    source="Micikevicius et al. 2022 (arXiv:2209.05433), section 3",
    codec="kvassay.formats.float8:Float8Quantizer",
    words=(Word("fp8-e4m3", 8, EVERY_SCALE, bare=True, code_dtypes=("float8_e4m3fn", "float8_e4m3fn")),),
    examples=("fp8-e4m3", "fp8-e4m3:token-head", "fp8-e4m3:tensor", "fp8-e4m3:head", "fp8-e4m3:token-head/had/seed=3"),
    error_bound="|x − x̂| <= |x| / 16, or scale / 1024 where that is more, for values that do not saturate",
)

ROWS = (FLOAT, FLOAT8)
