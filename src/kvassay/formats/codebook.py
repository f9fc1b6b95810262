"""Nearest level of a sorted codebook, and back."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def nearest_codes(values: Tensor, boundaries: tuple[float, ...]) -> Tensor:
    """How many boundaries each value reaches, as uint8: a value on a boundary takes the upper level."""
    edges = torch.tensor(boundaries, dtype=values.dtype, device=values.device)
    return torch.bucketize(values.contiguous(), edges, right=True).to(torch.uint8)


def levels_of(codes: Tensor, levels: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """The level of each code, in `dtype`."""
    return torch.tensor(levels, dtype=dtype, device=codes.device)[codes.long()]


def midpoints(levels: tuple[float, ...]) -> tuple[float, ...]:
    """Boundaries of the nearest-level cells."""
    return tuple((low + high) / 2 for low, high in pairwise(levels))
