"""Keys and values that a layer is given: what they must be, and which store gets which part of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kvassay.cache.cohorts import Cohort
from kvassay.cache.side_store import SideStore
from kvassay.core.geometry import LayerGeometry
from kvassay.errors import GeometryError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def is_plain(states: Tensor) -> bool:
    """True where a tensor's memory holds its values: false for views that negate, zeros without memory, nested tensors,
    subclasses."""
    return (
        type(states) is Tensor and not states.is_nested and not states.is_neg() and not states._is_zerotensor()  # pyright: ignore
    )


def plain(states: Tensor) -> Tensor:
    """The numbers alone, in memory. A cache holds no graph: a training step that needs gradients keeps its own."""
    states = states.detach()
    if states._is_zerotensor():  # pyright: ignore  (torch has no public name for it)
        return torch.zeros(states.shape, dtype=states.dtype, device=states.device)
    return states.resolve_neg()


def check_states(
    keys: Tensor, values: Tensor, geometry: LayerGeometry, rows: int | None, left_padding: int | None, layer: str
) -> None:
    """Raise GeometryError unless both sides are floats of the layer's shape; `layer` names it.

    `rows` are those that the layer holds, None for the first tokens, which `left_padding` was given for so many rows.
    """
    for what, states, dim in (("keys", keys, geometry.head_dim), ("values", values, geometry.value_dim)):
        if not isinstance(states, Tensor):
            raise GeometryError(f"{what} of {layer} are a {type(states).__name__}; expected a tensor of floats")
        if states.ndim != 4 or states.dtype not in _DTYPES:
            raise GeometryError(
                f"{what} of {layer} are {states.dtype} of shape {tuple(states.shape)}; expected floats of 16, 32 or 64 "
                "bits, [batch, kv_heads, tokens, head_dim]"
            )
        if states.layout != torch.strided or states.is_nested or states.is_meta:
            kind = "nested" if states.is_nested else states.layout
            raise GeometryError(f"{what} of {layer} are {kind} on {states.device}; expected a dense tensor in memory")
        expected = (geometry.kv_heads, dim)
        found = (states.shape[1], states.shape[3])
        if found != expected:
            raise GeometryError(
                f"{what} of {layer} have (kv_heads, head_dim) = {found}, the config says {expected}; "
                "pass keys before they are repeated to query heads"
            )
    if rows is None and left_padding not in (None, keys.shape[0]):
        raise GeometryError(
            f"{layer} got {keys.shape[0]} rows, and the cache was made with left_padding of {left_padding}; give one "
            "count for each row that arrives: generate repeats each prompt num_beams or num_return_sequences times"
        )
    rows = keys.shape[0] if rows is None else rows
    if {keys.shape[0], values.shape[0]} != {rows} or keys.shape[2] != values.shape[2]:
        raise GeometryError(
            f"{layer} got keys of (batch, tokens) {(keys.shape[0], keys.shape[2])} and values of "
            f"{(values.shape[0], values.shape[2])}; expected {rows} rows and equal lengths"
        )


def shares(cohort: Cohort, columns: int, keys: Tensor, values: Tensor) -> Iterator[tuple[SideStore, Tensor]]:
    """Stores of a cohort and what each gets of new keys and values, which follow `columns` columns."""
    skip = max(0, cohort.padding - columns)
    if skip >= keys.shape[2]:
        return
    whole = len(cohort.rows) == keys.shape[0]
    for group in cohort.stored_heads:
        for store, states in ((group.keys, keys), (group.values, values)):
            own = states if whole else states[list(cohort.rows)]
            if len(group.heads) < states.shape[1]:
                own = own[:, list(group.heads)]
            yield store, own[:, :, skip:]


def without_padding(cohorts: Sequence[Cohort], states: Tensor, first_column: int) -> Tensor:
    """New states with zeros where a row is padded: what a model computes there may be NaN, and 0 · NaN is NaN."""
    padded = [cohort for cohort in cohorts if cohort.padding > first_column]
    if padded:
        states = states.clone()
    for cohort in padded:
        states[list(cohort.rows), :, : cohort.padding - first_column] = 0
    return states
