"""How long one decode step's attention over a format takes here, by the compiled kernels.

A layer of the model's shape is filled with synthetic keys and values up to the context and read by one query a head;
the median of some rounds is summed over layers. So it is the time of attention alone, of one row, on this machine and
with as many threads as torch has: no projection, no append, no encoding. It tells formats apart and predicts no
tokens a second.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.fused_attention import fused_attention
from kvassay.cache.kernel_obstacle import layer_obstacle
from kvassay.cache.layer_calibration import layer_calibration
from kvassay.cache.packed_view import SeenTokens
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.tiled_attention import Scoring
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import HeadGroup, KVFormat, head_groups
from kvassay.errors import KernelError
from kvassay.kernels.native import instruction_set, native_state

ROUNDS = 15


class AttentionTime(NamedTuple):
    """Of one format, summed over layers."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int


class AttentionTimer:
    """Times formats; layers that store alike are timed once. Raises KernelError where there are no kernels."""

    def __init__(self, geometry: CacheGeometry, tokens: int, rounds: int = ROUNDS) -> None:
        if (missing := native_state().missing) is not None:
            raise KernelError(f"--target speed times the compiled kernels, and there are none: {missing}")
        self.geometry = geometry
        self.tokens = tokens
        self.rounds = rounds
        self._known: dict[tuple[LayerGeometry, tuple[HeadGroup, ...]], list[float]] = {}

    def to_json(self) -> dict[str, Any]:
        """What was timed, and where."""
        return {
            "what": "attention of one decode step of one row, all layers, synthetic keys and values",
            "tokens": self.tokens,
            "rounds": self.rounds,
            "threads": torch.get_num_threads(),
            "instruction_set": instruction_set(),
        }

    def obstacle(self, kv_format: KVFormat) -> str | None:
        """Why kernels cannot read the format; None where they can."""
        for index, layer in enumerate(self.geometry.layers):
            found = layer_obstacle(
                head_groups(kv_format, index, layer),
                layer,
                query_heads=self.geometry.query_heads,
                is_offloaded=False,
                transforms_keys=kv_format.transforms_keys,
            )
            if found is not None:
                return f"layer {index}: kernels cannot read it: {found}"
        return None

    def time(self, kv_format: KVFormat, calibration: Mapping[int, LayerCalibration]) -> AttentionTime:
        layers = [self._layer_us(kv_format, index, calibration) for index in range(self.geometry.num_layers)]
        return AttentionTime(
            median_us=sum(statistics.median(each) for each in layers),
            low_us=sum(min(each) for each in layers),
            high_us=sum(max(each) for each in layers),
            rounds=self.rounds,
        )

    def _layer_us(self, kv_format: KVFormat, index: int, calibration: Mapping[int, LayerCalibration]) -> list[float]:
        geometry = self.geometry.layers[index]
        key = (geometry, head_groups(kv_format, index, geometry))
        if key not in self._known:
            self._known[key] = self._measure(kv_format, index, calibration)
        return self._known[key]

    @torch.inference_mode()
    def _measure(self, kv_format: KVFormat, index: int, calibration: Mapping[int, LayerCalibration]) -> list[float]:
        geometry = self.geometry.layers[index]
        scales = layer_calibration(calibration, kv_format, index, geometry)
        layer = QuantizedLayer(kv_format, index, geometry, scales, "count", query_heads=self.geometry.query_heads)
        generator = torch.Generator().manual_seed(index)
        for tokens in (self.tokens - 1, 1):
            if tokens:
                layer.update(
                    torch.randn(1, geometry.kv_heads, tokens, geometry.head_dim, generator=generator),
                    torch.randn(1, geometry.kv_heads, tokens, geometry.value_dim, generator=generator),
                )
        query = torch.randn(1, self.geometry.query_heads, 1, geometry.head_dim, generator=generator)
        begin = 0 if geometry.sliding_window is None else max(0, self.tokens - geometry.sliding_window)
        scoring = Scoring(geometry.head_dim**-0.5)
        found = []
        for turn in range(self.rounds + 2):
            seen = SeenTokens(layer, layer.cohorts, begin, layer.columns, None)
            began = time.perf_counter()
            fused_attention(query, seen, None, scoring)
            if turn >= 2:  # the first calls touch pages and tables for the first time
                found.append(1e6 * (time.perf_counter() - began))
        return found
