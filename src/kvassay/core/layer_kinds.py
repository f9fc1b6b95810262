"""Which layers of a decoder hold a plain KV cache, and which of them slide, read from a transformers config.

The rules follow the config classes and `DynamicCache` of transformers 5: a missing `layer_types` means "as the model
type always did it", which differs by model type. Where no rule is known the config is refused, since a wrong guess
would price the cache wrongly and still look right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from kvassay.errors import GeometryError

LayerKind = Literal["full_attention", "sliding_attention"]

_KINDS: tuple[LayerKind, ...] = ("full_attention", "sliding_attention")
_OLD_NAMES = {"attention": "full_attention"}

_ALL_LAYERS_SLIDE = ("ministral", "mistral", "mixtral", "phi3", "starcoder2")
_SLIDE_FROM_MAX_WINDOW_LAYERS = (
    "qwen2",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen3",
    "qwen3_moe",
)
_FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "olmo3": 4, "gemma3_text": 6}
"""One full-attention layer after every period − 1 sliding ones."""

_ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "big_bird",
        "camembert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "esm",
        "eurobert",
        "megatron-bert",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xlnet",
        "xmod",
    }
)
_STATE_KEYS = (
    "attention_hidden_size",
    "attn_layer_indices",
    "attn_layer_period",
    "block_types",
    "conv_kernel",
    "layers_block_type",
    "linear_attn_config",
    "lru_width",
    "num_heads_per_recurrence",
    "rwkv_version",
    "ssm_cfg",
    "state_size",
)
"""Fields that only models with recurrent, convolutional or state-space layers have."""
_UNEVEN_KEYS = (
    "block_configs",
    "cross_attention_layers",
    "global_head_dim",
    "multi_query_group_num",
    "num_global_key_value_heads",
    "num_kv_heads_per_layer",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "swa_v_head_dim",
)
"""Fields that give single layers another shape, in ways that differ by model type."""


def refuse_other_caches(config: Mapping[str, Any], outer: Mapping[str, Any], model_type: str) -> None:
    """Raise GeometryError if the model keeps anything else than plain keys and values of a causal decoder.

    `outer` is the whole config file, `config` its decoder part (the same mapping for text models).
    """
    if outer.get("is_encoder_decoder") or config.get("is_encoder_decoder"):
        raise GeometryError(f"{model_type}: an encoder-decoder model; expected a decoder-only model")
    if model_type in _ENCODERS:
        raise GeometryError(f"{model_type}: an encoder, which has no KV cache; expected a causal decoder")
    if config.get("use_bidirectional_attention") in (True, "all"):
        raise GeometryError(f"{model_type}: use_bidirectional_attention is set; expected a causal decoder")
    if rank := config.get("kv_lora_rank"):
        raise GeometryError(
            f"{model_type}: multi-head latent attention (kv_lora_rank={rank}) caches a latent, "
            "not keys and values; this version supports plain KV caches"
        )
    if shared := config.get("num_kv_shared_layers"):
        raise GeometryError(
            f"{model_type}: {shared} layers read the cache of another layer (num_kv_shared_layers); "
            "this version supports models in which every layer has its own"
        )
    if chunk := config.get("attention_chunk_size"):
        raise GeometryError(f"{model_type}: chunked attention (attention_chunk_size={chunk}) is not supported")
    for key in _UNEVEN_KEYS:
        if config.get(key):
            raise GeometryError(f"{model_type}: {key} gives layers shapes of their own, which this version cannot read")
    if not config.get("layer_types"):
        for key in config:
            if config[key] is not None and (key in _STATE_KEYS or key.startswith(("mamba_", "ssm_"))):
                raise GeometryError(
                    f"{model_type}: {key} names layers with a recurrent state and the config has no layer_types; "
                    "this version supports attention layers only"
                )


def layer_kinds(config: Mapping[str, Any], model_type: str, num_layers: int) -> list[LayerKind]:
    """The kind of each layer; raises GeometryError for other kinds and where no rule is known."""
    given: object = config.get("layer_types")
    if given is None:
        return _kinds_by_rule(config, model_type, num_layers)
    if not isinstance(given, list | tuple):
        raise GeometryError(f"{model_type}: layer_types is {repr(given)[:60]}; expected a list of layer kinds")
    kinds = cast(Sequence[object], given)
    if len(kinds) != num_layers:
        raise GeometryError(f"{model_type}: layer_types names {len(kinds)} layers, num_hidden_layers is {num_layers}")
    return [_known_kind(kind, model_type, index) for index, kind in enumerate(kinds)]


def _known_kind(kind: object, model_type: str, index: int) -> LayerKind:
    name = _OLD_NAMES.get(str(kind), str(kind))
    for known in _KINDS:
        if name == known:
            return known
    raise GeometryError(f"{model_type}: layer {index} is of kind {name[:60]!r}; supported kinds: {', '.join(_KINDS)}")


def _kinds_by_rule(config: Mapping[str, Any], model_type: str, num_layers: int) -> list[LayerKind]:
    if not config.get("sliding_window"):
        return ["full_attention"] * num_layers
    if model_type in _SLIDE_FROM_MAX_WINDOW_LAYERS:
        if not config.get("use_sliding_window"):
            return ["full_attention"] * num_layers
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise GeometryError(f"{model_type}: max_window_layers is {str(first)[:60]!r}; expected an integer")
        return ["sliding_attention" if index >= first else "full_attention" for index in range(num_layers)]
    period = config.get("sliding_window_pattern") or _FULL_EVERY.get(model_type)
    if isinstance(period, int) and period > 0:
        return ["sliding_attention" if (index + 1) % period else "full_attention" for index in range(num_layers)]
    if model_type in _ALL_LAYERS_SLIDE:
        return ["sliding_attention"] * num_layers
    raise GeometryError(
        f"{model_type}: sliding_window={str(config['sliding_window'])[:40]} and no layer_types, so which layers slide "
        "is not known; add layer_types to config.json (saving the model once with transformers 5 writes it)"
    )
