"""The fixed input of the golden vectors: integer arithmetic only, so it is the same on every platform.

Element i (row-major over [batch, kv_heads, tokens, dim]) is (a + b + c + d - 131070) / 32768, where a, b, c and d are
the four 16-bit parts of splitmix64's i-th output from state 0: a sum of four uniform parts, near to a Gaussian of
standard deviation 1.15, and exact in float32. Then, in this order:

- channel 5 of head 0 is multiplied by 32 (an outlier channel);
- channel 9 of head 1 is -2 at every token (a constant group per channel);
- token 3 is 0.75 in every channel of every head (constant groups per token);
- token 7 is 0 in every channel of every head;
- batch row 1 is divided by 1024 at tokens 32 to 63 (small values beside large ones).
"""

from __future__ import annotations

import numpy as np

BATCH, KV_HEADS, DIM = 2, 2, 64
LEAST_TOKENS = 128
_MASK = (1 << 64) - 1


def splitmix64(index: int) -> int:
    """Output number `index` (from 0) of splitmix64 started at state 0 (Steele, Lea and Flood 2014)."""
    word = (index + 1) * 0x9E3779B97F4A7C15 & _MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31


def fixed_input(tokens: int = LEAST_TOKENS, dim: int = DIM) -> np.ndarray:
    """float32 `[2, 2, tokens, dim]`."""
    words = [splitmix64(index) for index in range(BATCH * KV_HEADS * tokens * dim)]
    sums = [sum(word >> shift & 0xFFFF for shift in (0, 16, 32, 48)) - 131070 for word in words]
    values = (np.array(sums, dtype=np.float64) / 32768).reshape(BATCH, KV_HEADS, tokens, dim)
    values[:, 0, :, 5] *= 32
    values[:, 1, :, 9] = -2
    values[:, :, 3] = 0.75
    values[:, :, 7] = 0
    values[1, :, 32:64] /= 1024
    return values.astype(np.float32)
