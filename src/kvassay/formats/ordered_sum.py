"""A sum over channels whose bits depend on the values alone."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def ordered_sum(values: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows 1"]:
    """Sum over the last axis by halving: first half plus second half, an odd last element joins the next round.

    `Tensor.sum` picks its order by shape and strides, so a token encoded alone could differ from the same token in a
    chunk. Here every addition is elementwise. The error grows with log2 of the channels.
    """
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        values = folded if values.shape[-1] == 2 * half else torch.cat((folded, values[..., 2 * half :]), dim=-1)
    return values


def row_norm(values: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows 1"]:
    """Euclidean norm over the last axis, scaled by the largest magnitude so that no square overflows or vanishes."""
    peak = values.abs().amax(-1, keepdim=True)
    safe = torch.where(peak == 0, torch.ones_like(peak), peak)
    return peak * torch.sqrt(ordered_sum((values / safe).square()))
