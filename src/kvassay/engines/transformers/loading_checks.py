"""Which models this engine can serve, decided from the config before any weight is read, and checked once after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.engines.transformers.loading_quiet import quiet_transformers
from kvassay.errors import GeometryError, ModelError

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def first_line(error: BaseException) -> str:
    """The first line of a library's message, for an error of one line."""
    text = " ".join(str(error).strip().split("\n")[0].split())
    return f"{type(error).__name__}: {text[:240]}" if text else type(error).__name__


def checked_config(folder: Path, name: str) -> tuple[PreTrainedConfig, CacheGeometry]:
    """Config and cache geometry of a transformers folder; raises ModelError for a model that cannot be served.

    Needs a causal decoder with plain keys and values in every layer, a language-model head, weights that are not
    quantized, and attention that goes through transformers' attention registry. Code of a repository is never run.
    """
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{name}: its config.json is not one that transformers knows ({first_line(error)}); "
            "models that bring their own code are not supported"
        ) from error
    try:
        geometry = geometry_from_config(config.to_dict())
    except GeometryError as error:
        raise ModelError(f"{name} is not supported: {error}") from error
    architectures = [str(item) for item in config.architectures or ()]
    if architectures and not any(item.endswith(_HEADS) for item in architectures):
        raise ModelError(f"{name}: architecture {architectures[0]} has no language-model head; expected ...ForCausalLM")
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ModelError(
            f"{name}: its weights are quantized ({method or 'quantization_config'}); "
            "this version loads plain safetensors or a GGUF file"
        )
    model_class = _model_class(config)
    if model_class is None:
        raise ModelError(f"{name}: transformers has no causal language model for model type {config.model_type!r}")
    if not model_class._supports_attention_backend:
        raise ModelError(
            f"{name}: the attention of {model_class.__name__} does not go through transformers' attention registry, "
            "so stored keys and values cannot be put in front of it; expected a model that supports attention backends"
        )
    return config, geometry


def attention_implementation(config: PreTrainedConfig) -> str:
    """`sdpa`, or `eager` for models that have none (GPT-OSS with its attention sinks)."""
    model_class = _model_class(config)
    return "sdpa" if model_class is not None and model_class._supports_sdpa else "eager"


def check_weights(model: nn.Module, loading: dict[str, Any], name: str) -> None:
    """Raise ModelError if weights were left at their random initialization or are not finite."""
    missing = sorted(str(key) for key in loading.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"{name}: the weight files lack {len(missing)} tensors (first: {missing[0]}); "
            "expected a complete checkpoint"
        )
    for key, weight in model.named_parameters():
        bad = weight.numel() - int(torch.isfinite(weight).sum())
        if bad:
            raise ModelError(f"{name}: weight {key} has {bad} NaN or infinite values of {weight.numel()}")


@torch.inference_mode()
def check_cache(model: Any, geometry: CacheGeometry, name: str) -> None:
    """Run two tokens and compare the shapes of transformers' own cache with the geometry read from the config."""
    try:
        with quiet_transformers():
            cache = model(input_ids=torch.tensor([[0, 0]]), use_cache=True).cache
        found = [
            (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3], getattr(layer, "sliding_window", None))
            for layer in cache.layers
        ]
    except Exception as error:  # what a model of another build than expected raises cannot be known
        raise ModelError(
            f"{name}: {type(model).__name__} does not fill a cache of keys and values ({first_line(error)}); "
            "this model type is not supported"
        ) from error
    expected = [(layer.kv_heads, layer.head_dim, layer.value_dim, layer.sliding_window) for layer in geometry.layers]
    if found == expected:
        return
    if len(found) != len(expected):
        raise ModelError(f"{name}: its cache has {len(found)} layers where the config says {len(expected)}")
    layer = next(index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
    raise ModelError(
        f"{name}: layer {layer} caches (KV heads, key size, value size, window) {found[layer]} where the config says "
        f"{expected[layer]}; this model type is not supported"
    )


def _model_class(config: PreTrainedConfig) -> Any:
    """The class that AutoModelForCausalLM would build, or None."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, list | tuple) else found
