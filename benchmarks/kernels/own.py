"""Our attention over a layer of a cache, by the compiled kernels and without them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig

import kvassay
from benchmarks.kernels.arm import Arm
from benchmarks.kernels.inputs import Inputs
from kvassay.cache import QuantizedCache
from kvassay.cache.cohorts import stored_as_one
from kvassay.cache.fused_attention import serves_step, step_attention
from kvassay.cache.packed_view import SeenTokens
from kvassay.cache.quantized_layer import QuantizedLayer
from kvassay.cache.tiled_attention import Scoring, tiled_attention
from kvassay.kernels.native import instruction_set

_FILL_TOKENS = 8192


def packed(inputs: Inputs, name: str, attention: str) -> Arm:
    """A cache in the format `name`, read `fused`, `tiled` (in torch) or `decoded` (all, then by torch's attention)."""
    shape = inputs.shape
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=shape.query_heads * shape.head_dim,
        num_hidden_layers=1,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    config._attn_implementation = "kvassay"
    cache = QuantizedCache(config, name, on_clip="count")
    last = shape.context - 1
    for begin in [*range(0, last, _FILL_TOKENS), last]:
        end = last if begin < last else shape.context
        tokens = slice(begin, min(begin + _FILL_TOKENS, end))
        cache.update(inputs.keys[:, :, tokens], inputs.values[:, :, tokens], 0)
    layer = cache.layers[0]
    assert isinstance(layer, QuantizedLayer)
    scoring = Scoring(shape.head_dim**-0.5)

    def fused() -> Tensor:
        seen = SeenTokens(layer, layer.cohorts, 0, layer.columns, None)
        seen.whole = stored_as_one(layer.cohorts)
        assert serves_step(inputs.query, seen), "a decode step of a model without a mask takes this way"
        return step_attention(inputs.query, seen, scoring)

    def tiled() -> Tensor:
        return tiled_attention(inputs.query, SeenTokens(layer, layer.cohorts, 0, layer.columns, None), None, scoring)

    def decoded() -> Tensor:
        seen = SeenTokens(layer, layer.cohorts, 0, layer.columns, None)
        return scaled_dot_product_attention(
            inputs.grouped_query, seen.decoded("keys", torch.float32), seen.decoded("values", torch.float32)
        )

    stored = sum(pool.nbytes for store in layer.stores for pool in store.pools)
    step = {"fused": fused, "tiled": tiled, "decoded": decoded}[attention]
    return Arm(step, stored, f"kvassay {kvassay.__version__} ({instruction_set()})")
