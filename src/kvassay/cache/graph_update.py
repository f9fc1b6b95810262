"""An append while torch.compile traces a model: whether one graph can hold it, and the operator that stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kvassay.cache.attention import READS_VIEWS
from kvassay.cache.traced import append, promise

if TYPE_CHECKING:
    from kvassay.cache.quantized_layer import QuantizedLayer


def fits_in_graph(layer: QuantizedLayer, config: Any) -> bool:
    """True where a traced forward can hold the append as one operator: its first tokens excepted."""
    if torch.compiler.is_exporting() or not layer.columns or not layer.hands_out_views:
        return False
    # What was found for the layer's last tokens, while nobody changed the model's attention since.
    return getattr(config, "_attn_implementation", None) in READS_VIEWS


def append_in_graph(
    layer: QuantizedLayer, key_states: Tensor, value_states: Tensor, cache_number: int, layer_idx: int
) -> tuple[Tensor, Tensor]:
    """Have the operator stand for the append, and promise the attention traced next what it returned."""
    tokens, _ = layer.get_mask_sizes(key_states.shape[2])
    promise.number, promise.layer = cache_number, layer_idx
    keys, values = append(key_states, value_states, cache_number, layer_idx, tokens)
    promise.keys = keys
    return keys, values
