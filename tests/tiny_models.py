"""Tiny random decoders of the architectures that the scorer and the cache must serve."""

from __future__ import annotations

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 97
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SLIDING = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


def tiny_config(name: str, **changes) -> PretrainedConfig:
    """The config alone, for tests that need no weights; `changes` go to Llama's."""
    match name:
        case "llama":
            return LlamaConfig(**{**_COMMON, **changes})
        case "qwen2":
            return Qwen2Config(**_COMMON)
        case "gemma2":
            return Gemma2Config(**_COMMON, **_SLIDING, query_pre_attn_scalar=32, attn_logit_softcapping=3.0)
        case "gemma3":
            return Gemma3TextConfig(**_COMMON, **_SLIDING, query_pre_attn_scalar=32)
        case "gpt_oss":
            return GptOssConfig(**_COMMON, **_SLIDING, num_local_experts=2, num_experts_per_tok=1)
        case _:
            raise ValueError(name)


_CLASSES = {
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "gemma2": Gemma2ForCausalLM,
    "gemma3": Gemma3ForCausalLM,
    "gpt_oss": GptOssForCausalLM,
}
NAMES = tuple(_CLASSES)


def tiny_model(name: str, seed: int = 0, **changes) -> PreTrainedModel:
    """A float64 model in eval mode; Qwen2 has a large key bias, GPT-OSS has learned attention sinks.

    float64, since two orders of float32 arithmetic differ by 1e-7, which now and then moves a value across a rounding
    boundary and so flips a code: a whole quantization step that is nobody's fault and would hide one that is.
    """
    torch.manual_seed(seed)
    model = _CLASSES[name](tiny_config(name, **changes))
    with torch.no_grad():
        for layer in model.model.layers:
            if name == "qwen2":
                layer.self_attn.k_proj.bias.normal_(std=3.0)
            if name == "gpt_oss":
                layer.self_attn.sinks.normal_()
    if name == "gpt_oss":
        model.set_experts_implementation("eager")  # the grouped kernels know no float64
    # Default initialisation gives nearly uniform attention, which would hide a wrong mask.
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(8)
            layer.self_attn.k_proj.weight.mul_(8)
    return model.double().eval()
