"""QuantSpec: how one side (keys or values) of a KV cache is represented.

A spec is a frozen value. Everything that changes a decoded number is in it, and so in its digest; how fast a
kernel ran is not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvassay.errors import FormatError

FloatDtype = Literal["float32", "float16", "bfloat16"]
ScaleDtype = Literal["float32", "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn"]
OptionValue = int | float | str

DTYPE_NBYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
}
"""Bytes of one element, by the dtype's torch name."""


class Granularity(StrEnum):
    """Which values share one scale. Shapes are those of keys `[batch, kv_heads, tokens, head_dim]`."""

    NONE = "none"
    """No scale: the value itself is stored."""
    TENSOR = "tensor"
    """One static scale for the side of a layer, fixed by calibration before the first token."""
    HEAD = "head"
    """One static scale a KV head."""
    STATIC_CHANNEL = "static-channel"
    """One static scale for each channel of each KV head."""
    TOKEN = "token"
    """One scale a token, shared by all KV heads."""
    TOKEN_HEAD = "token-head"
    """One scale for each token of each KV head."""
    GROUP = "group"
    """One scale for `group_size` adjacent channels of one token of one head."""
    CHANNEL = "channel"
    """One scale for one channel of one head over `group_size` consecutive tokens."""
    BLOCK = "block"
    """One scale for `group_size` adjacent channels over `block_tokens` consecutive tokens of one head."""
    TILE = "tile"
    """Scales of a method's own over a tile of `block_tokens` consecutive tokens and all channels of one head."""


STATIC = frozenset({Granularity.TENSOR, Granularity.HEAD, Granularity.STATIC_CHANNEL})
"""Granularities whose scale is fixed before the first token, so that it must come from somewhere."""


class Rotation(BaseModel):
    """A randomized Hadamard rotation of the channels, in blocks: H·diag(±1)/√block.

    `block` is a power of two that divides the head size; 0 takes the largest one. The signs follow from `seed`
    (docs/spec/packed-kv.md), and seed 0 means none: the plain Hadamard matrix.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["hadamard"] = "hadamard"
    block: int = Field(default=0, ge=0, le=1024)
    seed: int = Field(default=0, ge=0, lt=1 << 32)

    @model_validator(mode="after")
    def _check(self) -> Rotation:
        if self.block & (self.block - 1):
            raise FormatError(f"a Hadamard block is a power of two, found {self.block}; use for example had=64")
        return self


class QuantSpec(BaseModel, frozen=True):
    """Representation of one side of the cache.

    `method` names the rounding rule and code book (`core.method_table`). Two methods of equal bits are not
    interchangeable, so the method is part of the identity; `options` are what only this method knows.
    """

    model_config = ConfigDict(extra="forbid")

    method: str
    num_bits: int
    granularity: Granularity = Granularity.NONE
    group_size: int | None = None
    block_tokens: int | None = None
    symmetric: bool = True
    code_dtype: str = "uint8"
    """`uint8` for packed unsigned codes (several a byte below 8 bit), else the type of the stored element."""
    scale_dtype: ScaleDtype | None = None
    rotation: Rotation | None = None
    mean: bool = False
    """True where a static mean of each channel is subtracted before encoding and added after decoding."""
    options: tuple[tuple[str, OptionValue], ...] = ()
    """The method's own parameters, all of them, by name in rising order."""

    @model_validator(mode="after")
    def _check(self) -> QuantSpec:
        if self.code_dtype not in DTYPE_NBYTES:
            raise FormatError(f"code_dtype {self.code_dtype!r} is unknown; known: {', '.join(DTYPE_NBYTES)}")
        most = 8 * DTYPE_NBYTES[self.code_dtype]
        if not 1 <= self.num_bits <= most:
            raise FormatError(f"num_bits is {self.num_bits}; expected 1 to {most}, the bits of {self.code_dtype}")
        for field, needed in (
            ("group_size", self.granularity in (Granularity.GROUP, Granularity.CHANNEL, Granularity.BLOCK)),
            ("block_tokens", self.granularity in (Granularity.BLOCK, Granularity.TILE)),
        ):
            found: int | None = getattr(self, field)
            if needed and (found is None or found < 1):
                raise FormatError(
                    f"granularity {self.granularity.value} needs a group size of at least 1, found {found}; "
                    "write for example group32, channel32, block16x32 or tile128"
                )
            if not needed and found is not None:
                raise FormatError(f"granularity {self.granularity.value} takes no {field}, found {found}")
        if self.granularity is Granularity.NONE and self.scale_dtype is not None:
            raise FormatError("a spec without granularity stores no scale; remove scale_dtype")
        if self.rotation is not None and self.granularity is Granularity.STATIC_CHANNEL:
            raise FormatError(
                "a rotation mixes the channels that static per-channel scales tell apart; drop one of the two"
            )
        if (self.rotation is not None or self.mean) and self.is_exact:
            raise FormatError("plain floats gain nothing from a rotation or a mean; drop the modifier")
        names = [name for name, _ in self.options]
        if names != sorted(set(names)):
            raise FormatError(f"options must be distinct and in rising order, found {names}")
        return self

    def option(self, name: str) -> OptionValue:
        """The value of a method's own parameter; KeyError if the method has none of that name."""
        return dict(self.options)[name]

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
        """True where a scale is fixed before the first token, so that it must come from somewhere."""
        return self.granularity in STATIC

    @property
    def needs_calibration(self) -> bool:
        """True where anything static must be given before the first token: a scale, a mean, or a method's own array."""
        if self.is_static or self.mean:
            return True
        from kvassay.core.methods import method_of  # its rows are made of this module's types

        static_layout = method_of(self).static_layout
        return static_layout is not None and bool(static_layout(self, 1, self.group_size or 1))

    @property
    def tokens_per_block(self) -> int:
        """Tokens that must be complete before any of them can be encoded: 1 unless a scale spans several."""
        match self.granularity:
            case Granularity.CHANNEL:
                return self.group_size or 1
            case Granularity.BLOCK | Granularity.TILE:
                return self.block_tokens or 1
            case _:
                return 1


def exact_spec(dtype: FloatDtype) -> QuantSpec:
    """The spec that stores values as plain floats of `dtype`."""
    return QuantSpec(method="float", num_bits=8 * DTYPE_NBYTES[dtype], code_dtype=dtype)
