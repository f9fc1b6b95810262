"""Caches for scoring: one that records every key and value, one that begins with recorded ones."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class _FullLayer(DynamicLayer):
    """Keeps every token also for sliding layers, whose own cache class would forget the early ones."""

    is_sliding = False


class CaptureCache(Cache):
    """Records keys (after RoPE) and values `[batch, kv_heads, tokens, dim]` of every layer."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=_FullLayer)

    @property
    def keys(self) -> list[Tensor]:
        return [_recorded(layer, "keys") for layer in self.layers]

    @property
    def values(self) -> list[Tensor]:
        return [_recorded(layer, "values") for layer in self.layers]


def _recorded(layer: object, side: str) -> Tensor:
    states = getattr(layer, side)
    assert isinstance(states, Tensor), "a capture is read after the model ran"
    return states


class PrefixCache(Cache):
    """Hands attention the recorded prefix followed by the tokens of this call, both exact."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], prefix_tokens: int) -> None:
        layers = []
        for layer_keys, layer_values in zip(keys, values, strict=True):
            layer = _FullLayer()
            layer.lazy_initialization(layer_keys, layer_values)
            layer.keys = layer_keys[:, :, :prefix_tokens]
            layer.values = layer_values[:, :, :prefix_tokens]
            layers.append(layer)
        super().__init__(layers=layers)
