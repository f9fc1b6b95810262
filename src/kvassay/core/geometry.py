"""CacheGeometry: the shape of a model's KV cache, read from a config or a GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvassay.errors import GeometryError


class Owner(StrEnum):
    """What a stored byte is for."""

    CODES = "codes"
    """Quantized codes; for a side that is stored as plain floats, its values."""
    SCALES = "scales"
    ZERO_POINTS = "zero_points"
    """Minimum of each asymmetric group."""
    WINDOW = "window"
    """Full-precision recent tokens, including those that wait for their block to fill."""
    SINKS = "sinks"
    """Full-precision first tokens."""
    SKIPPED_LAYERS = "skipped_layers"
    """Full-precision layers of a format that quantizes the others."""
    PADDING = "padding"
    """Allocated and not filled: the unused end of a page, alignment."""
    BLOCK_TABLE = "block_table"
    WORKSPACE = "workspace"
    """Transient: conversion and dequantization buffers. Never part of the persistent sum."""


class LayerGeometry(BaseModel):
    """One layer's cache. `sliding_window` tokens are visible to a query (itself included), all if None."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    sliding_window: int | None = Field(default=None, ge=1)


class CacheGeometry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model_type: str
    query_heads: int = Field(ge=1)
    layers: tuple[LayerGeometry, ...] = Field(min_length=1)
    max_context: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)


_ATTENTION_KINDS = ("full_attention", "sliding_attention")


def geometry_from_config(config: Mapping[str, Any]) -> CacheGeometry:
    """Read the geometry from a transformers `config.json` (or `config.to_dict()`).

    Multimodal configs are followed into `text_config`. Raises GeometryError for layer kinds that hold no plain KV
    cache (linear attention, state space, latent attention), naming the field.
    """
    config = config.get("text_config") or config
    model_type = str(config.get("model_type", "unknown"))
    if config.get("kv_lora_rank"):
        raise GeometryError(
            f"{model_type}: multi-head latent attention (kv_lora_rank={config['kv_lora_rank']}) caches a latent, "
            "not keys and values; this version supports plain KV caches"
        )
    num_layers = _count(config, model_type, "num_hidden_layers", "n_layer", "num_layers")
    query_heads = _count(config, model_type, "num_attention_heads", "n_head")
    kv_heads = config.get("num_key_value_heads") or query_heads
    head_dim = config.get("head_dim") or _count(config, model_type, "hidden_size", "n_embd") // query_heads
    kinds = config.get("layer_types") or _layer_kinds(config, num_layers)
    if len(kinds) != num_layers:
        raise GeometryError(f"{model_type}: layer_types names {len(kinds)} layers, num_hidden_layers is {num_layers}")
    window = config.get("sliding_window")
    layers: list[LayerGeometry] = []
    for index, kind in enumerate(kinds):
        if kind not in _ATTENTION_KINDS:
            raise GeometryError(
                f"{model_type}: layer {index} is of kind {kind!r}; supported kinds: {', '.join(_ATTENTION_KINDS)}"
            )
        sliding = window if kind == "sliding_attention" else None
        layers.append(
            LayerGeometry(kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, sliding_window=sliding)
        )
    return CacheGeometry(
        model_type=model_type,
        query_heads=query_heads,
        layers=tuple(layers),
        max_context=config.get("max_position_embeddings"),
    )


def _layer_kinds(config: Mapping[str, Any], num_layers: int) -> list[str]:
    """Layer kinds of configs that predate `layer_types`: one kind for all layers."""
    sliding = config.get("sliding_window") and config.get("use_sliding_window", True)
    return ["sliding_attention" if sliding else "full_attention"] * num_layers


def _count(config: Mapping[str, Any], model_type: str, *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise GeometryError(f"{model_type}: the config has none of {', '.join(names)}; is it a decoder's config.json?")
