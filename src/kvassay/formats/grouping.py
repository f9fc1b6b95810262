"""Views that bring the values which share a scale onto common axes, for every granularity.

Shapes: values `[batch, kv_heads, tokens, dim]`. A grouped view has the shared values on `axes`; a stored scale is
`[batch, heads, blocks, *block_shape]` as `core.layout` declares it.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kvassay.core.spec import Granularity, QuantSpec


class Grouped(NamedTuple):
    """Values viewed by group, and the axes of that view that share one scale."""

    values: Tensor
    axes: tuple[int, ...]


def group_values(values: Tensor, spec: QuantSpec) -> Grouped:
    match spec.granularity:
        case Granularity.TENSOR:
            return Grouped(values, (0, 1, 2, 3))
        case Granularity.HEAD:
            return Grouped(values, (0, 2, 3))
        case Granularity.STATIC_CHANNEL:
            return Grouped(values, (0, 2))
        case Granularity.TOKEN:
            return Grouped(values, (1, 3))
        case Granularity.TOKEN_HEAD:
            return Grouped(values, (3,))
        case Granularity.GROUP:
            return Grouped(values.unflatten(3, (-1, _group_size(spec))), (4,))
        case Granularity.CHANNEL:
            return Grouped(values.unflatten(2, (-1, _group_size(spec))), (3,))
        case Granularity.BLOCK:
            blocks = values.unflatten(2, (-1, spec.tokens_per_block))
            return Grouped(blocks.unflatten(4, (-1, _group_size(spec))), (3, 5))
        case Granularity.NONE | Granularity.TILE:
            raise AssertionError(f"{spec.granularity} has no groups of one scale")


def ungroup_values(grouped: Tensor, spec: QuantSpec) -> Tensor:
    """Back to `[batch, kv_heads, tokens, dim]`."""
    match spec.granularity:
        case Granularity.GROUP:
            return grouped.flatten(3, 4)
        case Granularity.CHANNEL:
            return grouped.flatten(2, 3)
        case Granularity.BLOCK:
            return grouped.flatten(4, 5).flatten(2, 3)
        case _:
            return grouped


def store_parameters(reduced: Tensor, spec: QuantSpec) -> Tensor:
    """From keepdim shape of the grouped view to the stored `[batch, heads, blocks, n]`, or static `[heads, 1, n]`."""
    match spec.granularity:
        case Granularity.TENSOR | Granularity.HEAD | Granularity.STATIC_CHANNEL:
            return reduced.squeeze(0)  # [1, heads or 1, 1, dim or 1]
        case Granularity.GROUP:
            return reduced.squeeze(4)  # [batch, heads, tokens, groups, 1]
        case Granularity.CHANNEL:
            return reduced.squeeze(3)  # [batch, heads, blocks, 1, dim]
        case Granularity.BLOCK:
            return reduced.squeeze(5).squeeze(3)  # [batch, heads, blocks, 1, groups, 1]
        case _:
            return reduced  # [batch, heads or 1, tokens, 1]


def load_parameters(parameters: Tensor, spec: QuantSpec) -> Tensor:
    """Inverse of `store_parameters`: a shape that broadcasts over the grouped view."""
    match spec.granularity:
        case Granularity.GROUP:
            return parameters.unsqueeze(4)
        case Granularity.CHANNEL:
            return parameters.unsqueeze(3)
        case Granularity.BLOCK:
            return parameters.unsqueeze(3).unsqueeze(5)
        case _:
            return parameters


def block_codes(codes: Tensor, spec: QuantSpec) -> Tensor:
    """`[batch, heads, tokens, n]` to `[batch, heads, blocks, tokens_per_block, n]`; a view."""
    return codes.unflatten(2, (-1, spec.tokens_per_block))


def unblock_codes(codes: Tensor) -> Tensor:
    return codes.flatten(2, 3)


def _group_size(spec: QuantSpec) -> int:
    assert spec.group_size is not None, "QuantSpec checks that grouped granularities have a group size"
    return spec.group_size
