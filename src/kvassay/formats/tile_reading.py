"""What a kernel must know of a codec to read its codes in place.

A codec whose decoded value is

    x̂ = (number(code) − offset) · factor · scale + minimum

in some orthogonal basis of the channels can be read by a kernel: the query is brought into that basis, and the sum of
the values back out of it, which costs one small product a step instead of one for every token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

TileCode = Literal[
    "int8", "uint8", "uint4", "uint2", "table4", "table2", "float8_e4m3fn", "float16", "bfloat16", "float32"
]


class TileReading(NamedTuple):
    """Codes lie densely along the channels, the lowest bits first."""

    code: TileCode
    offset: float = 0.0
    """Taken from a code before it is scaled."""
    factor: float = 1.0
    """What scales are multiplied with; no minimum may stand beside one that is not 1."""
    table: tuple[float, ...] | None = None
    """The number of each code of `table4` and `table2`."""
    basis: Callable[[Tensor], Tensor] | None = None
    """From channels `[..., dim]` to what the codes stand for: orthogonal, and the same for every token."""


def unsigned_code(num_bits: int) -> TileCode | None:
    """Densely packed unsigned codes that kernels know."""
    return {2: "uint2", 4: "uint4", 8: "uint8"}.get(num_bits)  # pyright: ignore[reportReturnType]


def table_code(num_bits: int) -> TileCode | None:
    """Codes into a table."""
    return {2: "table2", 4: "table4"}.get(num_bits)  # pyright: ignore[reportReturnType]
