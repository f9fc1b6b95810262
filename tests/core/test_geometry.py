"""CacheGeometry from transformers configs: the real cache's shapes where it is plain, else a refusal by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.errors import GeometryError

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {**TINY, "head_dim": 16}

SUPPORTED: dict[str, Callable[[], Any]] = {
    "llama, head_dim from hidden size": lambda: hf.LlamaConfig(**TINY),
    "llama, head_dim set": lambda: hf.LlamaConfig(**WIDE),
    "qwen2": lambda: hf.Qwen2Config(**TINY),
    "qwen2, upper layers slide": lambda: hf.Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=8, max_window_layers=3
    ),
    "qwen3": lambda: hf.Qwen3Config(**WIDE),
    "mistral": lambda: hf.MistralConfig(**WIDE, sliding_window=8),
    "mistral, no window": lambda: hf.MistralConfig(**WIDE, sliding_window=None),
    "gemma2": lambda: hf.Gemma2Config(**WIDE, sliding_window=8),
    "gemma3 text": lambda: hf.Gemma3TextConfig(**{**WIDE, "num_hidden_layers": 7}, sliding_window=8),
    "gpt-oss": lambda: hf.GptOssConfig(**WIDE, sliding_window=8, num_local_experts=2, num_experts_per_tok=1),
    "phi3": lambda: hf.Phi3Config(**TINY, sliding_window=8),
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_layer=2, n_head=4, n_embd=32, n_positions=128),
    "gpt-bigcode, one KV head": lambda: hf.GPTBigCodeConfig(
        vocab_size=64, n_layer=2, n_head=4, n_embd=32, n_positions=128, multi_query=True
    ),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_geometry_equals_the_shapes_of_the_real_cache(name: str) -> None:
    """B37, B61: what is priced is what transformers allocates, sliding layers included."""
    config = SUPPORTED[name]()
    geometry = geometry_from_config(config.to_dict())
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.inference_mode():
        cache = model(torch.arange(3, 33)[None] % 60, use_cache=True).cache
    found = [
        (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3], getattr(layer, "sliding_window", None))
        for layer in cache.layers
    ]
    assert found == [(one.kv_heads, one.head_dim, one.value_dim, one.sliding_window) for one in geometry.layers]
    assert geometry.query_heads == config.num_attention_heads
    assert geometry.max_context == 128
    # The file that transformers writes says the same.
    assert geometry_from_config(json.loads(config.to_json_string())) == geometry


def test_multimodal_configs_are_followed_into_their_text_part() -> None:
    config = hf.Gemma3Config(text_config={**WIDE, "num_hidden_layers": 7, "sliding_window": 8})
    geometry = geometry_from_config(config.to_dict())
    assert geometry.model_type == "gemma3_text"
    assert [layer.sliding_window for layer in geometry.layers] == [8, 8, 8, 8, 8, None, 8]


def test_published_gemma3_file_that_leaves_defaults_out() -> None:
    published = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    complete = hf.Gemma3Config(text_config=published["text_config"]).to_dict()
    assert geometry_from_config(published) == geometry_from_config(complete)


def test_older_files_without_layer_types_keep_the_pattern_of_their_model_type() -> None:
    for config in (hf.Gemma2Config(), hf.Gemma3TextConfig(), hf.Cohere2Config(), hf.GptOssConfig(), hf.Olmo3Config()):
        complete = config.to_dict()
        older = {key: value for key, value in complete.items() if key != "layer_types"}
        assert geometry_from_config(older) == geometry_from_config(complete), config.model_type


def test_qwen2_published_window_is_not_in_force() -> None:
    """Qwen2.5 files carry sliding_window and use_sliding_window = false."""
    config = {**TINY, "model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False, "max_window_layers": 2}
    assert {layer.sliding_window for layer in geometry_from_config(config).layers} == {None}


def test_layers_with_shapes_of_their_own() -> None:
    """B41: head size by layer."""
    geometry = geometry_from_config(hf.Gemma4TextConfig(num_hidden_layers=6).to_dict())
    assert [layer.head_dim for layer in geometry.layers] == [256, 256, 256, 256, 256, 512]
    assert [layer.sliding_window for layer in geometry.layers] == [512] * 5 + [None]


def test_value_size_of_its_own() -> None:
    geometry = geometry_from_config(hf.MiMoV2FlashConfig().to_dict())
    assert (geometry.layers[0].head_dim, geometry.layers[0].value_dim) == (192, 128)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "deepseek": (hf.DeepseekV3Config, "kv_lora_rank"),
    "mamba": (hf.MambaConfig, "state_size"),
    "mamba2": (hf.Mamba2Config, "state_size"),
    "jamba": (hf.JambaConfig, "attn_layer_period"),
    "falcon-h1": (hf.FalconH1Config, "mamba_"),
    "recurrent gemma": (hf.RecurrentGemmaConfig, "lru_width"),
    "qwen3-next": (hf.Qwen3NextConfig, "linear_attention"),
    "minimax": (hf.MiniMaxConfig, "linear_attention"),
    "lfm2": (lambda: hf.Lfm2Config(num_hidden_layers=3, layer_types=["conv", "conv", "full_attention"]), "conv"),
    "llama4": (hf.Llama4TextConfig, "chunked"),
    "gemma3n": (hf.Gemma3nTextConfig, "num_kv_shared_layers"),
    "mllama": (hf.MllamaConfig, "cross_attention_layers"),
    "t5": (hf.T5Config, "encoder-decoder"),
    "whisper": (hf.WhisperConfig, "encoder-decoder"),
    "bert": (hf.BertConfig, "encoder"),
    "modernbert": (hf.ModernBertConfig, "encoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_caches_are_refused_by_the_name_of_the_field(name: str) -> None:
    """B38: unsupported layer kinds are found in the config, before any token."""
    build, word = REFUSED[name]
    with pytest.raises(GeometryError, match=word):
        geometry_from_config(build().to_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 5}, "not a multiple"),
        ({"num_key_value_heads": 4}, "not a multiple of 4 KV heads"),
        ({"num_key_value_heads": [2, 2, 2, 2]}, "positive integer"),
        ({"num_hidden_layers": 10**6}, "1000000 layers; expected at most"),
        ({"num_hidden_layers": 10**12}, "at most"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "positive integer"),
        ({"head_dim": 1.5}, "positive integer"),
        ({"layer_types": ["full_attention"]}, "names 1 layers, num_hidden_layers is 4"),
        ({"layer_types": ["full_attention"] * 3 + ["mamba"]}, "layer 3 is of kind 'mamba'"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        ({"sliding_window": 8}, "no layer_types"),
        ({"use_bidirectional_attention": True}, "causal"),
    ],
)
def test_faulty_configs_name_what_is_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(GeometryError, match=words):
        geometry_from_config({**TINY, "model_type": "llama", **change})


_words = ["", "0", "3", "x", "llama", "qwen2", "gemma3_text", "full_attention", "sliding_attention", "head_dim", "a\nb"]
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5000) | st.floats() | st.sampled_from(_words),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_words), inner, max_size=4),
    max_leaves=6,
)
_fields = st.sampled_from(
    [
        *(*TINY, "model_type", "head_dim", "v_head_dim", "layer_types", "sliding_window", "sliding_window_pattern"),
        *("text_config", "per_layer_config", "attn_config", "max_window_layers", "use_sliding_window"),
    ]
)


@given(st.dictionaries(_fields, _json, max_size=6))
def test_any_json_object_gives_a_geometry_or_a_geometry_error(changes: dict[str, Any]) -> None:
    try:
        outcome: object = geometry_from_config({**TINY, "model_type": "qwen2", **changes})
    except GeometryError as error:
        outcome = str(error)
    assert isinstance(outcome, CacheGeometry) or (isinstance(outcome, str) and "\n" not in outcome)
