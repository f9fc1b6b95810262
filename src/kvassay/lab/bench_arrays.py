"""The arrays on the bench: drawn as in the 36-row experiment, all zero, or captured from a model."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from kvassay.core.geometry import CacheGeometry
from kvassay.experiments.attention_error_inputs import draw_inputs
from kvassay.experiments.attention_error_plan import LENGTHS, NORMAL, QUERY_ROWS, WIDTH, Cell
from kvassay.lab.bench_settings import BenchSettings
from kvassay.lab.capture import Captured


class BenchArrays(NamedTuple):
    """float64; `exact_attention` of captured arrays follows the model's own rule, of others the experiment's."""

    queries: Float64[Tensor, "queries width"]
    keys: Float64[Tensor, "tokens width"]
    values: Float64[Tensor, "tokens value_width"]
    label: str
    captured: Captured | None = None
    geometry: CacheGeometry | None = None


def bench_arrays(settings: BenchSettings, captured: Captured | None) -> BenchArrays:
    """The arrays of these settings, before an element is enlarged."""
    if settings.source == "captured":
        assert captured is not None, "the room asks for a capture before it shows one"
        return _of_model(settings, captured)
    if settings.source == "zeros":
        queries = _drawn(settings.seed, settings.tokens, settings.width)[0]
        zeros = torch.zeros(settings.tokens, settings.width, dtype=torch.float64)
        return BenchArrays(queries, zeros, zeros.clone(), "Synthetic data: every element zero.")
    drawn = _drawn(settings.seed, settings.tokens, settings.width)
    same = settings.width == WIDTH and settings.tokens in LENGTHS
    label = "Synthetic data: standard normal" + (", the arrays of the 36-row experiment." if same else ".")
    return BenchArrays(*drawn, label)


def enlarged(array: Tensor, factor: float) -> Tensor:
    """A copy whose element [0, 0] is `factor` times itself, or `factor` where it was zero; the array itself for 1."""
    if factor == 1:
        return array
    changed = array.clone()
    changed[0, 0] = changed[0, 0] * factor if changed[0, 0] else factor
    return changed


@lru_cache(maxsize=16)
def _drawn(seed: int, tokens: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in the order of the experiment, whose generator goes on from length to length."""
    if width == WIDTH and tokens in LENGTHS:
        inputs = draw_inputs(seed)[Cell(seed, tokens, NORMAL)]
        queries, keys, values = (torch.from_numpy(array) for array in inputs)
        return queries, keys, values
    generator = np.random.default_rng(seed)
    queries, keys, values = (
        torch.from_numpy(generator.standard_normal((rows, width))) for rows in (QUERY_ROWS, tokens, tokens)
    )
    return queries, keys, values


def _of_model(settings: BenchSettings, captured: Captured) -> BenchArrays:
    layer = captured.layer(settings.layer)
    head = captured.head(settings.layer, settings.head)
    label = (
        f"Captured from {captured.model}: layer {settings.layer}, KV head {settings.head}, {captured.tokens} tokens of "
        f"“{captured.document}”, keys after rotary embedding."
    )
    return BenchArrays(
        queries=head.queries[0].flatten(0, 1).double(),
        keys=head.keys[0, 0].double(),
        values=head.values[0, 0].double(),
        label=label,
        captured=captured,
        geometry=layer,
    )
