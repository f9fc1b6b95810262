"""Plain floats and the float8 family."""

from __future__ import annotations

from kvassay.core.methods import EVERY_SCALE, Family, InPlace, Method, Word, Working
from kvassay.core.spec import Granularity, QuantSpec, ScaleDtype

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
    in_place=InPlace.CHANNELS,
    error_bound="|x − x̂| <= |x| · 2^-11 in f16 (at least 2^-25), |x| · 2^-8 in bf16, |x| · 2^-24 in f32",
)

_SCALES: tuple[ScaleDtype, ...] = ("float32", "float16", "bfloat16", "float8_e8m0fnu")


def _word(element: str) -> Word:
    dtype = {"e4m3": "float8_e4m3fn"}.get(element, f"float8_{element}")
    return Word(f"fp8-{element}", 8, EVERY_SCALE, bare=True, code_dtypes=(dtype, dtype), scale_dtypes=_SCALES)


def _working(spec: QuantSpec) -> Working:
    return Working(10 if spec.granularity is Granularity.NONE else 14, 4)


def _in_place(spec: QuantSpec) -> InPlace:
    """Kernels know one element, and no scale that is an exponent."""
    known = spec.code_dtype == "float8_e4m3fn" and spec.scale_dtype != "float8_e8m0fnu"
    return InPlace.CHANNELS if known else InPlace.NO


FLOAT8 = Method(
    name="float8",
    family=Family.SCALED,
    summary="float8 elements, by plain cast, with an absmax scale, or with a shared exponent (MXFP8)",
    source="Micikevicius et al. 2022 (arXiv:2209.05433), section 3; OCP MX v1.0, sections 5 and 6.3",
    codec="kvassay.formats.float8:Float8Quantizer",
    words=tuple(_word(element) for element in ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")),
    examples=(
        "fp8-e4m3",
        "fp8-e4m3:token-head",
        "fp8-e4m3:tensor",
        "fp8-e4m3:head",
        "fp8-e4m3:channel",
        "fp8-e4m3:token-head/had/seed=3",
        "fp8-e4m3:group32/scale=e8m0",
        "fp8-e5m2",
        "fp8-e5m2:tensor",
        "fp8-e5m2:token-head",
        "fp8-e4m3fnuz",
        "fp8-e4m3fnuz:tensor",
        "fp8-e4m3fnuz:token-head",
        "fp8-e5m2fnuz",
        "fp8-e5m2fnuz:token-head",
    ),
    in_place=_in_place,
    working=_working,
    error_bound="|x − x̂| <= |x| / 16 (e4m3) or |x| / 8 (e5m2), or half the smallest element times the scale where that "
    "is more, for values that do not saturate",
)

ROWS = (FLOAT, FLOAT8)
