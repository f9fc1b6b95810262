"""What all ggml blocks of 32 values share: views, scales, halves of 4-bit codes, and ggml's own byte order.

Codes are computed with float32 scales and minimums and decoded with the stored float16 ones, as ggml does. So the codes
differ from those of kvassay's own `int` method at equal bits, and the two do not read each other's bytes.

The codes of a block stand in ggml's order (the fifth bits, if any, then the low four: code i in the low half and code
i + 16 in the high half of byte i); `to_ggml_rows` puts scale and minimum in front of them and has ggml's rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvassay.core.spec import QuantSpec
from kvassay.errors import FormatError, RangeError
from kvassay.formats.base import Quantizer, Streams, require_finite
from kvassay.formats.grouping import unblock_codes

BLOCK_SIZE = 32
HALF = BLOCK_SIZE // 2


class GgmlQuantizer(Quantizer):
    """Base of the six block formats."""

    def __init__(self, spec: QuantSpec) -> None:
        super().__init__(spec)
        if spec.group_size != BLOCK_SIZE:
            raise FormatError(f"{spec.method} has blocks of {BLOCK_SIZE} values, found {spec.group_size}")

    def _blocks(self, values: Tensor) -> Tensor:
        """`[..., dim]` to float32 `[..., dim / 32, 32]`."""
        require_finite(values)
        blocks = values.to(torch.float32)
        if not bool(torch.isfinite(blocks).all()):
            raise RangeError(f"{self.spec.method} computes in float32, and a value does not fit it; use f32")
        return blocks.unflatten(-1, (-1, BLOCK_SIZE))

    def _stored(self, parameter: Tensor, what: str) -> Tensor:
        """`[..., groups, 1]` rounded to float16 `[..., groups]`."""
        rounded = parameter.to(torch.float16)
        if not bool(torch.isfinite(rounded).all()):
            raise RangeError(
                f"a {what} of {float(parameter.abs().max()):.4g} does not fit the float16 of {self.spec.method}; use "
                "int8:group32/scale=f32 or another format with float32 scales"
            )
        return rounded.squeeze(-1)


def inverse(scale: Tensor) -> Tensor:
    """1 / scale; 0 where the scale is zero or so small that its inverse overflows (ggml leaves that undefined)."""
    found = 1 / scale
    return torch.where(torch.isfinite(found), found, torch.zeros_like(found))


def largest_signed(blocks: Tensor) -> Tensor:
    """The value of largest magnitude of each block with its sign; of equals the first."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


def join_halves(codes: Tensor) -> Tensor:
    """4-bit codes `[..., 32]` to `[..., 16]` bytes."""
    return codes[..., :HALF] | codes[..., HALF:] << 4


def split_halves(packed: Tensor) -> Tensor:
    """Inverse of `join_halves`."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def block_bytes(streams: Streams, nbytes: int) -> Tensor:
    """The codes of each block: `[batch, heads, tokens, groups, nbytes]`."""
    return unblock_codes(streams["codes"]).unflatten(-1, (-1, nbytes))


def parameter(streams: Streams, name: str, dtype: torch.dtype) -> Tensor:
    """A stored scale or minimum that broadcasts over the values of its block."""
    return streams[name].to(dtype).unsqueeze(-1)


def byte_order(values: Tensor) -> Tensor:
    """Channels `[..., dim]` in the order in which the 4-bit codes of their blocks stand in the bytes."""
    return values.unflatten(-1, (-1, 2, HALF)).transpose(-1, -2).flatten(-3)


def to_ggml_rows(streams: Streams) -> Tensor:
    """ggml's own bytes, by block: scale, minimum if there is one, codes. `[batch, heads, tokens, nbytes]` uint8."""
    heads = [streams[name].contiguous() for name in ("scales", "minimums") if name in streams]
    parts = [head.view(torch.uint8).unflatten(-1, (-1, 2)) for head in heads]
    codes = unblock_codes(streams["codes"]).contiguous().view(torch.uint8)
    return torch.cat((*parts, codes.unflatten(-1, (heads[0].shape[-1], -1))), dim=-1).flatten(-2)
