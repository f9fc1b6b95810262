"""Errors of attention computed anew in NumPy, one query and one head at a time; shares no arithmetic with the library.

The quantizer is symmetric int8 with one scale a token and head: scale = max|x|/127 rounded to float32, codes by
round-half-even, x̂ = code · scale. Entries are rounded to float16 first, as the cache does.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def int8_token_head(values: Array) -> Array:
    """`[heads, tokens, dim]` as the codes give them back."""
    entering = values.astype(np.float16).astype(np.float32)
    scale = (np.abs(entering).max(axis=2, keepdims=True) / np.float32(127)).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale)
    codes = np.clip(np.rint(entering / scale), -127, 127)
    return codes.astype(np.float64) * scale.astype(np.float64)


def attention(query: Array, keys: Array, values: Array, scaling: float) -> tuple[Array, Array, Array]:
    """Scores, weights and output of one query `[dim]` over `[tokens, dim]`."""
    scores = np.array([math.fsum((query * key).tolist()) for key in keys]) * scaling
    weights = np.exp(scores - scores.max())
    weights /= math.fsum(weights.tolist())
    return scores, weights, weights @ values


def cell_errors(
    queries: Array, keys: Array, values: Array, read_keys: Array, read_values: Array, scaling: float, last: int
) -> dict[tuple[int, str], dict[str, float]]:
    """By KV head and substituted side: the figures of a cell as the table has them.

    `queries` are `[query_heads, tokens, dim]`, sides `[kv_heads, tokens, dim]`; each query reads what every older token
    and its own give back, which holds for formats without a recent window and with blocks of one token.
    """
    repeats, tokens = len(queries) // len(keys), queries.shape[1]
    found = {}
    for head in range(len(keys)):
        exact = (keys[head], values[head])
        read = (read_keys[head], read_values[head])
        for side, (k, v) in {"keys": (read[0], exact[1]), "values": (exact[0], read[1]), "both": read}.items():
            errors: dict[str, list[Array]] = {"score": [], "weight": [], "output": []}
            signals: dict[str, list[Array]] = {"score": [], "weight": [], "output": []}
            for query_head in range(head * repeats, (head + 1) * repeats):
                for position in range(tokens - last, tokens):
                    seen = slice(0, position + 1)
                    true = attention(queries[query_head, position], exact[0][seen], exact[1][seen], scaling)
                    other = attention(queries[query_head, position], k[seen], v[seen], scaling)
                    for name, a, b in zip(errors, true, other, strict=True):
                        errors[name].append(b - a)
                        signals[name].append(a)
            figures = {
                f"{name}_{kind}": value
                for name in errors
                for kind, value in _figures(np.concatenate(errors[name]), np.concatenate(signals[name])).items()
            }
            arrays = [
                _figures((r - e).ravel(), e.ravel())
                for r, e, of in zip(read, exact, ("keys", "values"), strict=True)
                if side in (of, "both")
            ]
            figures |= {f"reconstruction_{kind}": max(array[kind] for array in arrays) for kind in arrays[0]}
            found[head, side] = figures
    return found


def _figures(error: Array, signal: Array) -> dict[str, float]:
    energy = math.fsum((error**2).tolist())
    return {
        "rmse": math.sqrt(energy / len(error)),
        "max_abs": float(np.abs(error).max()),
        "relative": math.sqrt(energy / math.fsum((signal**2).tolist())),
    }
