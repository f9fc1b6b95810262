"""Hadamard rotation of channels: x' = H·diag(s)·x / √block, block by block.

Its inverse is diag(s)·Hᵀ/√block. H is Sylvester's (natural order): H[i, j] = (−1)^popcount(i & j). Signs: seed 0 has
none; else channel c of the head has sign −1 where bit c of the splitmix64 stream of the seed is one (64 channels a
draw, lowest bit first; Steele, Lea and Flood 2014). Every head uses the same signs.

Since the rotation is orthogonal, ⟨q, k⟩ = ⟨q', k'⟩: a kernel may rotate the query instead of every key, and rotate the
output of the values once. Sources: QuaRot (Ashkboos et al. 2024, arXiv:2404.00456, section 3); llama.cpp rotates keys
and values of head sizes that are a multiple of 64 in the same way.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.core.layout import rotation_block
from kvassay.core.spec import QuantSpec

_MASK = (1 << 64) - 1


def rotate(values: Float[Tensor, "*rows dim"], spec: QuantSpec) -> Float[Tensor, "*rows dim"]:
    """Rotated channels, in the dtype of `values`."""
    assert spec.rotation is not None, "the caller checks that there is a rotation"
    block = _block(spec, values.shape[-1])
    signs = channel_signs(spec.rotation.seed, values.shape[-1]).to(values)
    return hadamard(values * signs, block)


def unrotate(values: Float[Tensor, "*rows dim"], spec: QuantSpec) -> Float[Tensor, "*rows dim"]:
    """Inverse of `rotate`: H is symmetric, so only the order of signs and transform turns."""
    assert spec.rotation is not None, "the caller checks that there is a rotation"
    block = _block(spec, values.shape[-1])
    signs = channel_signs(spec.rotation.seed, values.shape[-1]).to(values)
    return hadamard(values, block) * signs


def hadamard(values: Float[Tensor, "*rows dim"], block: int) -> Float[Tensor, "*rows dim"]:
    """H·x/√block of each block of channels.

    A butterfly of single additions in a fixed order (strides 1, 2, 4, ...), scaled last. A matrix product would be
    faster and is not used: its order of summation depends on the shape and strides of the call, and codes must not.
    """
    rows = values.unflatten(-1, (-1, block))
    stride = 1
    while stride < block:
        pairs = rows.unflatten(-1, (-1, 2, stride))
        even, odd = pairs[..., 0, :], pairs[..., 1, :]
        rows = torch.stack((even + odd, even - odd), dim=-2).flatten(-3)
        stride *= 2
    return (rows * block**-0.5).flatten(-2)


@lru_cache(maxsize=64)
def channel_signs(seed: int, dim: int) -> Float[Tensor, " dim"]:
    """+1 or −1 for each channel, float64."""
    if seed == 0:
        return torch.ones(dim, dtype=torch.float64)
    signs: list[float] = []
    state = seed
    while len(signs) < dim:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        word = state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
        word ^= word >> 31
        signs += [-1.0 if word >> bit & 1 else 1.0 for bit in range(64)]
    return torch.tensor(signs[:dim], dtype=torch.float64)


def _block(spec: QuantSpec, dim: int) -> int:
    block = rotation_block(spec, dim)
    assert block is not None, "the spec has a rotation"
    return block
