"""What every arm is given: one query a head, and the keys and values of one layer, batch 1."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int

    @property
    def heads(self) -> str:
        return f"{self.query_heads}x{self.kv_heads}x{self.head_dim}"


class Inputs(NamedTuple):
    """The same numbers for all arms, float32; arms quantize them into their own layout before anything is timed."""

    shape: Shape
    query: Tensor
    """`[1, query_heads, 1, head_dim]`"""
    keys: Tensor
    """`[1, kv_heads, context, head_dim]`"""
    values: Tensor
    answer: Tensor
    """Attention in float64, `[query_heads, head_dim]`."""

    @property
    def grouped_query(self) -> Tensor:
        """Queries of a KV head side by side: `[1, kv_heads, query_heads / kv_heads, head_dim]`, without a copy."""
        return self.query.view(1, self.shape.kv_heads, -1, self.shape.head_dim)

    def error_of(self, output: Tensor) -> float:
        """Euclidean norm of the difference to `answer`, as a part of the answer's."""
        found = output.detach().double().reshape(self.answer.shape)
        return float((found - self.answer).norm() / self.answer.norm())


def draw(shape: Shape) -> Inputs:
    """Gaussian numbers, the same ones for the same shape."""
    generator = torch.Generator().manual_seed(31)
    query, keys, values = (
        torch.randn(1, heads, tokens, shape.head_dim, generator=generator)
        for heads, tokens in ((shape.query_heads, 1), (shape.kv_heads, shape.context), (shape.kv_heads, shape.context))
    )
    grouped = query.view(shape.kv_heads, -1, shape.head_dim).double()
    answers = []
    for head in range(shape.kv_heads):  # One at a time: float64 of all heads would be the largest thing in memory.
        scores = grouped[head] @ keys[0, head].double().T * shape.head_dim**-0.5
        answers.append(scores.softmax(-1) @ values[0, head].double())
    return Inputs(shape, query, keys, values, torch.cat(answers))
