"""QuantSpec: how one side (keys or values) of a KV cache is represented.

A spec is a frozen value. Everything that changes a decoded number is in it, and so in its digest; how fast a
kernel ran is not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from kvassay.errors import FormatError

ScaleDtype = Literal["float32", "float16"]
FloatDtype = Literal["float32", "float16", "bfloat16"]

DTYPE_NBYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "uint8": 1,
    "int8": 1,
}
"""Bytes of one element, by the dtype's torch name."""


class Granularity(StrEnum):
    """Which values share one scale. Shapes are those of keys `[batch, kv_heads, tokens, head_dim]`."""

    NONE = "none"
    """No scale: the value itself is stored."""
    TENSOR = "tensor"
    """One static scale for the side of a layer, fixed by calibration before the first token."""
    TOKEN = "token"
    """One scale a token, shared by all KV heads."""
    TOKEN_HEAD = "token-head"
    """One scale for each token of each KV head."""
    GROUP = "group"
    """One scale for `group_size` adjacent channels of one token of one head."""
    CHANNEL = "channel"
    """One scale for one channel of one head over `group_size` consecutive tokens."""


class QuantSpec(BaseModel):
    """Representation of one side of the cache.

    `method` names the rounding rule and code book (`float`, `int`, `float8`, `q8_0`, `q4_0`). Two methods of equal
    bits are not interchangeable, so the method is part of the identity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    num_bits: int
    granularity: Granularity = Granularity.NONE
    group_size: int | None = None
    symmetric: bool = True
    code_dtype: str = "uint8"
    """`uint8` for packed unsigned codes (several a byte below 8 bit), else the type of the stored element."""
    scale_dtype: ScaleDtype | None = None

    @model_validator(mode="after")
    def _check(self) -> QuantSpec:
        grouped = self.granularity in (Granularity.GROUP, Granularity.CHANNEL)
        if grouped and (self.group_size is None or self.group_size < 1):
            raise FormatError(
                f"granularity {self.granularity.value} needs a group size of at least 1, found {self.group_size}; "
                f"write for example {self.granularity.value}32"
            )
        if not grouped and self.group_size is not None:
            raise FormatError(f"granularity {self.granularity.value} takes no group size, found {self.group_size}")
        if self.granularity is Granularity.NONE and self.scale_dtype is not None:
            raise FormatError("a spec without granularity stores no scale; remove scale_dtype")
        return self

    @property
    def is_exact(self) -> bool:
        """True where values are stored as plain floats, without codes."""
        return self.method == "float"

    @property
    def has_minimum(self) -> bool:
        """True where each group stores its minimum beside its scale (asymmetric grid)."""
        return not self.symmetric

    @property
    def is_static(self) -> bool:
        """True where one scale is fixed before the first token, so that it must come from somewhere."""
        return self.granularity is Granularity.TENSOR

    @property
    def tokens_per_block(self) -> int:
        """Tokens that must be complete before any of them can be encoded: the group for per-channel scales, else 1."""
        return self.group_size or 1 if self.granularity is Granularity.CHANNEL else 1


def exact_spec(dtype: FloatDtype) -> QuantSpec:
    """The spec that stores values as plain floats of `dtype`."""
    return QuantSpec(method="float", num_bits=8 * DTYPE_NBYTES[dtype], code_dtype=dtype)
