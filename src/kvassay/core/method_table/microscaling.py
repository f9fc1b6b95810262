"""4-bit floats (E2M1) with one scale a small block: NVFP4, MXFP4 and their relatives."""

from __future__ import annotations

from collections.abc import Callable

from kvassay.core.geometry import Owner
from kvassay.core.methods import Family, Method, Option, Stream, Word, Working
from kvassay.core.spec import Granularity, OptionValue, QuantSpec


def _one_of(*choices: OptionValue) -> Callable[[OptionValue], bool]:
    return lambda value: value in choices


def _global_scale(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """One float32 for the side of a layer, where it is calibrated."""
    if spec.option("global") == "unit":
        return ()
    return (Stream("global_scale", Owner.SCALES, "float32", 1, (1, 1)),)


def _nvfp4_working(spec: QuantSpec) -> Working:
    return Working(31 if spec.option("four_over_six") else 26.5, 17)


NVFP4 = Method(
    name="nvfp4",
    family=Family.MICROSCALING,
    summary="E2M1 elements in blocks of 16 channels, e4m3 block scale, one float32 scale a side",
    source="NVIDIA ModelOpt, NVFP4QTensor; Four Over Six (Cook et al. 2025, arXiv:2512.02010)",
    codec="kvassay.formats.nvfp4:NVFP4Quantizer",
    words=(
        Word(
            "nvfp4",
            4,
            fixed=(Granularity.GROUP, 16),
            scale_dtype="float8_e4m3fn",
            scale_dtypes=("float8_e4m3fn",),
        ),
    ),
    examples=(
        "nvfp4",
        "nvfp4/four_over_six=1",
        "nvfp4/global=static",
        "nvfp4/global=static/four_over_six=1",
        "nvfp4/mean/global=static",
        "nvfp4/had/seed=2",
    ),
    working=_nvfp4_working,
    error_bound="|x − x̂| <= scale · S + max|x| / 16, with the stored block scale, of 2^-6 or more, and the global "
    "scale S",
    static_layout=_global_scale,
    options=(
        Option(
            "global",
            "unit",
            "unit (block scales stand alone) or static (one calibrated float32 a side)",
            _one_of("unit", "static"),
        ),
        Option(
            "four_over_six",
            0,
            "1 scales each block to 6 or to 4, whichever errs less; 0 always to 6",
            _one_of(0, 1),
        ),
    ),
)

E2M1 = Method(
    name="e2m1",
    family=Family.MICROSCALING,
    summary="E2M1 elements in blocks of channels with a shared exponent (MXFP4) or a float scale",
    source="OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6.3",
    codec="kvassay.formats.mxfp4:MicroscaledQuantizer",
    words=(
        Word(
            "mxfp4",
            4,
            fixed=(Granularity.GROUP, 32),
            scale_dtype="float8_e8m0fnu",
            scale_dtypes=("float8_e8m0fnu",),
        ),
        Word(
            "fp4-e2m1",
            4,
            (Granularity.GROUP,),
            scale_dtypes=("float8_e8m0fnu", "float8_e4m3fn", "float16", "float32"),
        ),
    ),
    examples=(
        "mxfp4",
        "mxfp4/had",
        "fp4-e2m1:group16/scale=e8m0",
        "fp4-e2m1:group16/scale=e8m0/exponent=ceil",
        "fp4-e2m1:group32/scale=e4m3",
        "fp4-e2m1:group64",
        "fp4-e2m1:group32/scale=f32",
    ),
    working=Working(26, 17),
    error_bound="|x − x̂| <= scale, the stored one; 2 · scale where an e8m0 scale with exponent=floor saturates",
    options=(
        Option(
            "exponent",
            "floor",
            "of an e8m0 scale: floor (OCP MX; the largest values may saturate) or ceil (none does)",
            _one_of("floor", "ceil"),
        ),
    ),
)

ROWS = (NVFP4, E2M1)
