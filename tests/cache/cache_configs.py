"""Configs of layers that tests fill by hand."""

from __future__ import annotations

from transformers import LlamaConfig


def one_layer_config(kv_heads: int, ratio: int, dim: int) -> LlamaConfig:
    """One full-attention layer whose attention reads packed pages; no model is made of it."""
    found = LlamaConfig(
        vocab_size=8,
        hidden_size=kv_heads * ratio * dim,
        num_hidden_layers=1,
        num_attention_heads=kv_heads * ratio,
        num_key_value_heads=kv_heads,
        head_dim=dim,
    )
    found._attn_implementation = "kvassay"
    return found
