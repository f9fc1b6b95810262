"""Uniform integer grids."""

from __future__ import annotations

from kvassay.core.methods import EVERY_SCALE, Family, InPlace, Method, Word, Working
from kvassay.core.spec import QuantSpec


def _word(num_bits: int) -> Word:
    wide = num_bits == 8
    return Word(
        f"int{num_bits}",
        num_bits,
        EVERY_SCALE,
        symmetric=wide,
        may_flip=True,
        # A signed byte where a code fills one, else packed unsigned codes.
        code_dtypes=("int8" if wide else "uint8", "uint8"),
    )


def _working(spec: QuantSpec) -> Working:
    """Unpacked codes stand beside the values; scales of a group are widened to float32."""
    widened = 4 / spec.group_size if spec.group_size and spec.scale_dtype != "float32" else 0
    return Working(9, 4 + (spec.num_bits < 8) + widened)


def _in_place(spec: QuantSpec) -> InPlace:
    return InPlace.CHANNELS if spec.num_bits in (2, 4, 8) else InPlace.NO


INTEGER = Method(
    name="int",
    family=Family.GROUPED,
    summary="uniform grid: scale (symmetric) or scale and minimum (asymmetric)",
    source="KIVI (Liu et al. 2024, arXiv:2402.02750, section 3); symmetric 8 bit as in the attention-error experiment",
    codec="kvassay.formats.integer:IntegerQuantizer",
    words=tuple(_word(num_bits) for num_bits in (8, 7, 6, 5, 4, 3, 2, 1)),
    examples=(
        "int8:tensor",
        "int8:head",
        "int8:channel",
        "int8:token",
        "int8:token-head",
        "int8:token-head/asym",
        "int8:token-head/had",
        "int8:group32/scale=f32",
        "int7:group32",
        "int6:token-head",
        "int5:channel16/sym",
        "int4:tensor",
        "int4:tensor/mean",
        "int4:token-head",
        "int4:group16/sym",
        "int4:group32",
        "int4:group32/had=32/seed=9",
        "int4:group64",
        "int4:group64/scale=bf16",
        "int4:channel32",
        "int4:block16x32",
        "int3:group32",
        "int3:channel32/sym",
        "int2:group32",
        "int2:channel32",
        "int2:channel32/scale=f32",
        "int1:group32",
    ),
    in_place=_in_place,
    working=_working,
    error_bound="|x − x̂| <= scale / 2, with the scale as it is stored; beyond a static scale's range values saturate",
)

ROWS = (INTEGER,)
