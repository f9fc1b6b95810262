"""CacheGeometry: the shape of a model's KV cache, read from a config or a GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from kvassay.core.layer_kinds import layer_kinds, refuse_other_caches
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


MAX_LAYERS = 4096
_MAX_COUNT = 1 << 24
"""Bounds for hostile configs; real models stay far below."""


class LayerGeometry(BaseModel):
    """One layer's cache. `sliding_window` tokens are visible to a query (itself included), all if None."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv_heads: int = Field(ge=1, le=_MAX_COUNT)
    head_dim: int = Field(ge=1, le=_MAX_COUNT)
    value_dim: int = Field(ge=1, le=_MAX_COUNT)
    sliding_window: int | None = Field(default=None, ge=1, le=_MAX_COUNT)


class CacheGeometry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    model_type: str
    query_heads: int = Field(ge=1, le=_MAX_COUNT)
    layers: tuple[LayerGeometry, ...] = Field(min_length=1, max_length=MAX_LAYERS)
    max_context: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)


_OMITTED: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    }
}
"""Class defaults that published config files leave out (transformers, Gemma3TextConfig)."""

_LAYER_COUNT = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEAD_COUNT = ("num_attention_heads", "n_head", "n_heads")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


def geometry_from_config(config: Mapping[str, Any]) -> CacheGeometry:
    """Read the geometry from a transformers `config.json` (or `config.to_dict()`).

    Multimodal configs are followed into `text_config`. Raises GeometryError for anything but causal decoders with
    plain keys and values (latent attention, linear attention, state space, encoders), naming the field.
    """
    outer, config = config, _decoder_part(config)
    named = config.get("model_type")
    model_type = named if isinstance(named, str) and named.isprintable() and len(named) <= 80 else "unknown"
    config = {**_OMITTED.get(model_type, {}), **{key: value for key, value in config.items() if value is not None}}
    refuse_other_caches(config, outer, model_type)
    num_layers = _count(config, model_type, *_LAYER_COUNT)
    if num_layers > MAX_LAYERS:
        raise GeometryError(f"{model_type}: {num_layers} layers; expected at most {MAX_LAYERS}")
    query_heads = _count(config, model_type, *_HEAD_COUNT)
    overrides = _layer_overrides(config, model_type)
    layers: list[LayerGeometry] = []
    for index, kind in enumerate(layer_kinds(config, model_type, num_layers)):
        own = {**config, **overrides.get(index, {})}
        kv_heads = _kv_heads(own, model_type, query_heads)
        head_dim = _head_dim(own, model_type, query_heads)
        if query_heads % kv_heads:
            raise GeometryError(f"{model_type}: {query_heads} query heads are not a multiple of {kv_heads} KV heads")
        layers.append(
            LayerGeometry(
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=_count(own, model_type, "v_head_dim") if own.get("v_head_dim") else head_dim,
                sliding_window=_count(own, model_type, "sliding_window") if kind == "sliding_attention" else None,
            )
        )
    context = next((config[name] for name in _CONTEXT if config.get(name)), None)
    return CacheGeometry(
        model_type=model_type,
        query_heads=query_heads,
        layers=tuple(layers),
        max_context=context if isinstance(context, int) and context > 0 else None,
    )


def _decoder_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return cast(Mapping[str, Any], text) if isinstance(text, Mapping) and text else config


def _layer_overrides(config: Mapping[str, Any], model_type: str) -> dict[int, Mapping[str, Any]]:
    """transformers 5 `per_layer_config`: layer index (as text in JSON) -> the fields that differ there."""
    overrides: dict[int, Mapping[str, Any]] = {}
    given: object = config.get("per_layer_config") or {}
    if not isinstance(given, Mapping):
        raise GeometryError(f"{model_type}: per_layer_config is not a mapping of layer index to fields")
    for index, fields in cast(Mapping[object, object], given).items():
        if not (str(index).isascii() and str(index).isdecimal()) or not isinstance(fields, Mapping):
            raise GeometryError(f"{model_type}: per_layer_config[{_shortened(index)}] is not a layer's fields")
        fields = cast(Mapping[str, Any], fields)
        if "num_attention_heads" in fields:
            raise GeometryError(
                f"{model_type}: layer {index} has its own number of query heads, which is not supported"
            )
        overrides[int(str(index))] = fields
    return overrides


def _kv_heads(config: Mapping[str, Any], model_type: str, query_heads: int) -> int:
    if config.get("num_key_value_heads"):
        return _count(config, model_type, "num_key_value_heads")
    # DBRX, Falcon and GPT-BigCode say it in their own words.
    attention = config.get("attn_config")
    if isinstance(attention, Mapping) and "kv_n_heads" in attention:
        return _count(cast(Mapping[str, Any], attention), model_type, "kv_n_heads")
    if config.get("new_decoder_architecture"):
        return _count(config, model_type, "num_kv_heads")
    return 1 if config.get("multi_query") else query_heads


def _head_dim(config: Mapping[str, Any], model_type: str, query_heads: int) -> int:
    if config.get("head_dim") or config.get("kv_channels"):
        return _count(config, model_type, "head_dim", "kv_channels")
    width = _count(config, model_type, *_WIDTH)
    if width % query_heads:
        raise GeometryError(
            f"{model_type}: hidden size {width} is not a multiple of {query_heads} query heads, "
            "and head_dim is not given"
        )
    return width // query_heads


def _count(config: Mapping[str, Any], model_type: str, *names: str) -> int:
    """The first of `names` that the config has, as a positive integer."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_COUNT:
            raise GeometryError(
                f"{model_type}: {name} is {_shortened(value)}; expected a positive integer (at most {_MAX_COUNT})"
            )
        return value
    raise GeometryError(
        f"{model_type}: the config has none of {', '.join(names)}; is it a decoder's config.json? "
        "(Files that leave out defaults are completed by saving the config once with transformers.)"
    )


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
