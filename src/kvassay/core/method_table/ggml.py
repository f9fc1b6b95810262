"""ggml's 32-value blocks, as llama.cpp stores its cache."""

from __future__ import annotations

from kvassay.core.methods import Family, Method, Word
from kvassay.core.spec import Granularity

_BLOCK = (Granularity.GROUP, 32)

Q8_0 = Method(
    name="q8_0",
    family=Family.GROUPED,
    summary="ggml block: 32 signed 8-bit codes, float16 scale",
    source="ggml quantize_row_q8_0_ref",
    codec="kvassay.formats.ggml_blocks:Q8Quantizer",
    words=(Word("q8_0", 8, fixed=_BLOCK, code_dtypes=("int8", "int8"), scale_dtypes=("float16",)),),
    examples=("q8_0", "q8_0/had"),
    error_bound="|x − x̂| <= scale / 2, plus |x| · 2^-11 for the scale's own rounding to float16",
)

Q4_0 = Method(
    name="q4_0",
    family=Family.GROUPED,
    summary="ggml block: 32 4-bit codes, float16 scale",
    source="ggml quantize_row_q4_0_ref",
    codec="kvassay.formats.ggml_blocks:Q4Quantizer",
    words=(Word("q4_0", 4, fixed=_BLOCK, scale_dtypes=("float16",)),),
    examples=("q4_0", "q4_0/had"),
    error_bound="|x − x̂| <= |scale| / 2, or |scale| for a value opposite to the group's largest, plus |x| · 2^-11",
)

ROWS = (Q8_0, Q4_0)
