"""Keys without their bias or rotary embedding: what is stored, what comes back, and for which models it is refused."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
)
from transformers.cache_utils import Cache, DynamicLayer

from kvassay.cache import QuantizedCache
from kvassay.cache.key_transform import PositionTables, RotaryKeyTransform, Rotation
from kvassay.cache.model_keys import key_transforms
from kvassay.cache.side_store import SideStore
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import LayerGeometry, geometry_from_config
from kvassay.core.kv_format import head_groups
from kvassay.core.layout import stored_bits_per_value
from kvassay.core.ledger import KEY_TRANSFORM_ASSUMPTION, predict_ledger
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.errors import FormatError, ModelError
from kvassay.formats.packed_kv import PackedFormat
from tests import tiny_models

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HALF = SMALL["hidden_size"] // SMALL["num_attention_heads"] // 2


def rope(kind: str, **more) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LONG = rope(
    "longrope",
    short_factor=[1.0 + 0.1 * index for index in range(HALF)],
    long_factor=[4.0] * HALF,
    original_max_position_embeddings=128,
    factor=2.0,
)
VARIANTS: dict[str, PretrainedConfig] = {
    "default": LlamaConfig(**SMALL, attention_bias=True),
    "linear": LlamaConfig(**SMALL, **rope("linear", factor=4.0)),
    "yarn": Qwen2Config(**SMALL, **rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama3": LlamaConfig(
        **SMALL,
        **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "longrope": LlamaConfig(**SMALL, **LONG),
    "partial": PhiConfig(**SMALL, partial_rotary_factor=0.5),
    "partial, by another name": StableLmConfig(**SMALL, partial_rotary_factor=0.25, use_qkv_bias=True),
    "fused projection": Phi3Config(**SMALL),
    "interleaved": CohereConfig(**SMALL, attention_bias=True),
    "some layers without": SmolLM3Config(**SMALL, no_rope_layers=[1, 0, 1]),
    "by layer type, after a norm": Gemma3TextConfig(
        **SMALL,
        head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "after a norm": Qwen3Config(**SMALL, head_dim=16),
}


def model_of(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("k_proj.bias", "q_proj.bias")):
                parameter.normal_(std=3.0)
    return model.eval()


def cached_keys(model: PreTrainedModel, tokens: int) -> list[torch.Tensor]:
    """Keys of a run of the model, by layer."""
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    token_ids = torch.randint(3, 97, (1, tokens), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.get_decoder()(token_ids, cache=cache, use_cache=True)
    return [layer.keys for layer in cache.layers]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("variant", VARIANTS)
def test_rope_of_every_kind_is_removed_and_comes_back(variant) -> None:
    """Far beyond the tokens of the check: keys of position 90 too are those of the projection, turned."""
    model = model_of(VARIANTS[variant])
    plain: dict[int, torch.Tensor] = {}
    for layer, block in enumerate(model.get_decoder().layers):
        module = next(
            getattr(block.self_attn, name)
            for name in ("k_norm", "k_proj", "qkv_proj")
            if hasattr(block.self_attn, name)
        )
        module.register_forward_hook(lambda _module, _inputs, output, layer=layer: plain.update({layer: output}))
    transforms = key_transforms(model, parse_format("int4-g32,rope=removed"))
    keys = cached_keys(model, 91)

    for layer, transform in transforms.items():
        found = transform.forward(keys[layer], 0)
        expected = plain[layer]
        if expected.ndim == 3:  # a projection: [1, tokens, channels], of a fused one the middle
            heads = keys[layer].shape[1] * keys[layer].shape[3]
            first = 64 if expected.shape[-1] > heads else 0
            expected = expected[..., first : first + heads].unflatten(-1, (-1, keys[layer].shape[3]))
        expected = expected.transpose(1, 2) if expected.shape[1] == 91 else expected
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(transform.inverse(found, 0), keys[layer], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", ["default", "partial", "partial, by another name", "interleaved", "yarn"])
def test_keys_without_bias_are_those_of_the_model_without_bias(variant) -> None:
    """k − RoPE_p(b) is what the same projection gives once its bias is zero."""
    model = model_of(VARIANTS[variant])
    transforms = key_transforms(model, parse_format("int4-g32,keybias=removed"))
    biased = cached_keys(model, 60)[0]
    with torch.no_grad():
        model.get_decoder().layers[0].self_attn.k_proj.bias.zero_()
    plain = cached_keys(model, 60)[0]

    assert float((biased - plain).abs().max()) > 1
    torch.testing.assert_close(transforms[0].forward(biased, 0), plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(transforms[0].inverse(plain, 0), biased, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("steps", ["keybias=removed", "rope=removed", "keybias=removed,rope=removed"])
def test_b46_codes_do_not_depend_on_how_the_tokens_came(steps) -> None:
    """R20: one chunk, odd chunks or single tokens give the same bytes, also across the blocks of cosine tables."""
    model = model_of(VARIANTS["default"])
    kv_format = parse_format(f"k=int4:channel8,v=f16,sinks=3,recent=2,{steps}")
    transforms = key_transforms(model, kv_format)
    layer = geometry_from_config(model.config.to_dict()).layers[0]
    keys = torch.randn(2, 2, 1100, 16, generator=torch.Generator().manual_seed(2)) * 5

    def store(chunks: list[int]) -> SideStore:
        built = SideStore(
            head_groups(kv_format, 0, layer)[0].keys, 2, 16, kv_format.exact_dtype, key_transform=transforms[0]
        )
        for part in keys.split(chunks, dim=2):
            built.append(part)
        return built

    whole, odd = store([1100]), store([1, 1, 7, 64, 951, 1, 70, 5])
    # A step of these codes is at most (largest − smallest of eight) / 15, about 3; another position is off by 20.
    assert float((whole.read() - keys).abs().max()) < 3
    assert torch.equal(whole.read(), odd.read())
    for one, other in zip(whole.coded_pages, odd.coded_pages, strict=True):
        assert torch.equal(one.raw(), other.raw())
    assert torch.equal(whole.read()[:, :, :3], keys[:, :, :3].half().float()), "sinks are the keys themselves"
    assert torch.equal(whole.read()[:, :, -2:], keys[:, :, -2:].half().float()), "and so is the window"


def test_b39_a_sliding_layer_decodes_at_the_positions_that_it_kept() -> None:
    model = model_of(VARIANTS["by layer type, after a norm"])
    kv_format = parse_format("int8-token-head,rope=removed")
    cache = QuantizedCache.for_model(model, kv_format)
    keys = cached_keys(model, 120)
    for start in range(0, 120, 10):
        for layer, layer_keys_ in enumerate(keys):
            seen, _ = cache.update(layer_keys_[:, :, start : start + 10], layer_keys_[:, :, start : start + 10], layer)
    last = slice(-24, None)
    for layer, layer_keys_ in enumerate(keys):
        seen, _ = cache.update(layer_keys_[:, :, :1], layer_keys_[:, :, :1], layer)
        torch.testing.assert_close(
            seen[:, :, -24:-1], layer_keys_[:, :, last][:, :, 1:], atol=0.02 * float(layer_keys_.abs().max()), rtol=0
        )


def synthetic_attention_kl(text: str, seed: int = 3) -> tuple[float, float]:
    """Mean KL of softmax weights in nats, and stored bits a key value: four channels of bias 150 to 300, D = 128.

    Keys are RoPE_p(Wx + b) with unit normal Wx; queries are unit normal.
    """
    generator = torch.Generator().manual_seed(seed)
    dim, tokens = 128, 512
    kv_format = parse_format(text)
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def compute(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.arange(first, first + count, dtype=torch.float64)[:, None] * frequencies
        return angles.cos(), angles.sin()

    rotation = Rotation(PositionTables(compute), "halves")
    bias = torch.zeros(1, dim, dtype=torch.float64)
    bias[0, [5, 41, 77, 120]] = torch.tensor([150.0, -200.0, 250.0, -300.0], dtype=torch.float64)
    plain = torch.randn(1, 1, tokens, dim, generator=generator, dtype=torch.float64)
    keys = rotation.apply(plain + bias, 0)
    removes_bias, removes_rope = kv_format.key_bias == "removed", kv_format.key_rope == "removed"
    transform = RotaryKeyTransform(rotation, bias if removes_bias else None, removes_rope=removes_rope)
    layer = LayerGeometry(kv_heads=1, head_dim=dim, value_dim=dim)
    plan = head_groups(kv_format, 0, layer)[0].keys
    store = SideStore(plan, 1, dim, kv_format.exact_dtype, key_transform=transform)
    store.append(keys)
    queries = torch.randn(64, dim, generator=generator, dtype=torch.float64)
    exact = torch.log_softmax(queries @ keys[0, 0].T / math.sqrt(dim), dim=-1)
    found = torch.log_softmax(queries @ store.read(torch.float64)[0, 0].T / math.sqrt(dim), dim=-1)
    kl = float((exact.exp() * (exact - found)).sum(-1).mean())
    return kl, stored_bits_per_value(kv_format.keys, 1, dim)


def test_b02_b03_removing_the_bias_restores_four_bit_per_token_keys() -> None:
    for codec in ("int4:group64", "int4:group64/had", "q4_0"):
        kept, _ = synthetic_attention_kl(f"k={codec},v=f16")
        removed, bits = synthetic_attention_kl(f"k={codec},v=f16,keybias=removed")
        assert bits <= 4.6
        assert removed < 0.01 < 0.1 < kept, (codec, kept, removed)


def test_per_channel_codes_of_keys_before_rotation_do_not_see_a_bias() -> None:
    """Before RoPE the bias is a constant of its channel, which the minimum takes up; RoPE turns it into a wave."""
    turned, _ = synthetic_attention_kl("k=int4:channel32,v=f16")
    unturned, _ = synthetic_attention_kl("k=int4:channel32,v=f16,rope=removed")
    assert unturned < 0.01 < 0.1 < turned


def inject_bias(model: PreTrainedModel, layer: int) -> None:
    """Four channels of 150 to 300 in every KV head of one layer, and no bias in the others."""
    with torch.no_grad():
        for index, block in enumerate(model.get_decoder().layers):
            bias = block.self_attn.k_proj.bias.zero_()
            if index == layer:
                bias.view(2, -1)[:, [3, 21, 40, 61]] = torch.tensor([150.0, -200.0, 250.0, -300.0]).to(bias)


def test_b01_a_whole_model_with_a_biased_layer_is_restored_by_removing_the_bias() -> None:
    """A tiny Qwen2, decode steps over the quantized cache: KL of next-token distributions."""
    model = tiny_models.tiny_model("qwen2")
    inject_bias(model, 1)
    model.lm_head.weight.data *= 3  # at its initial size all logits are nearly equal
    scorer = DecodeScorer(model, geometry_from_config(model.config.to_dict()))
    token_ids = torch.randint(3, tiny_models.VOCABULARY, (200,), generator=torch.Generator().manual_seed(5))
    reference = scorer.reference(token_ids)
    exact = torch.log_softmax(scorer.output_head(reference.hidden[50:]), dim=-1)

    def kl(text: str) -> float:
        hidden = scorer.candidate(token_ids, 50, reference, parse_format(text)).hidden
        found = torch.log_softmax(scorer.output_head(hidden), dim=-1)
        return float((exact.exp() * (exact - found)).sum(-1).mean())

    for codec in ("int4:group64", "int4:group64/had"):
        kept, removed = kl(f"k={codec},v=f16"), kl(f"k={codec},v=f16,keybias=removed")
        assert removed < 0.01 < 0.05 < kept, (codec, kept, removed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_16_bits_are_recognised(dtype) -> None:
    """Their own rounding is larger than the tolerance of float32, and another pairing is still told apart."""
    for variant in ("default", "interleaved", "yarn"):
        model = model_of(VARIANTS[variant]).to(dtype)
        cache = QuantizedCache.for_model(model, "k=int8:token-head,v=f16,keybias=removed,rope=removed,exact=bf16")
        keys = cached_keys(model, 40)[0]
        seen, _ = cache.update(keys, keys, 0)
        seen, _ = cache.update(keys[:, :, :1], keys[:, :, :1], 0)
        assert seen.dtype == dtype
        torch.testing.assert_close(seen[:, :, :40].float(), keys.float(), atol=0.02 * float(keys.abs().max()), rtol=0)


def test_generation_over_the_cache_of_a_model() -> None:
    model = tiny_models.tiny_model("qwen2").float()
    cache = QuantizedCache.for_model(model, "kv=int8:token-head,keybias=removed,rope=removed")
    token_ids = torch.arange(5, 25)[None]
    found = model.generate(token_ids, cache=cache, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert found.shape == (1, 25)
    assert cache.get_seq_length() == 24


def test_left_padding_costs_quality_and_never_correctness() -> None:
    """Keys of tokens that the model placed five positions further come back as they were."""
    model = model_of(VARIANTS["default"])
    transform = key_transforms(model, parse_format("int4-g32,keybias=removed,rope=removed"))[0]
    shifted = cached_keys(model, 60)[0][:, :, 5:]
    torch.testing.assert_close(transform.inverse(transform.forward(shifted, 0), 0), shifted, atol=1e-4, rtol=1e-4)


def test_r25_the_ledger_says_that_bias_and_rotation_cost_nothing_and_only_there() -> None:
    geometry = geometry_from_config(tiny_models.tiny_config("qwen2").to_dict())
    plain = predict_ledger(geometry, parse_format("int4-g32"), 100)
    removed = predict_ledger(geometry, parse_format("int4-g32,keybias=removed"), 100)
    assert removed.keys_nbytes == plain.keys_nbytes
    assert KEY_TRANSFORM_ASSUMPTION in removed.assumptions
    assert KEY_TRANSFORM_ASSUMPTION not in plain.assumptions


def test_r19_the_cache_of_a_model_allocates_what_was_predicted() -> None:
    model = tiny_models.tiny_model("qwen2")
    cache = QuantizedCache.for_model(model, "kivi-4,recent=8,keybias=removed")
    with torch.no_grad():
        model.get_decoder()(torch.arange(3, 93)[None], cache=cache, use_cache=True)
    predicted = predict_ledger(cache.geometry, cache.kv_format, 90)
    assert (cache.ledger().keys_nbytes, cache.ledger().assumptions) == (predicted.keys_nbytes, predicted.assumptions)


def test_r8_a_removed_bias_is_part_of_the_identity() -> None:
    names = ("int4-g32", "int4-g32,keybias=removed", "int4-g32,rope=removed", "int4-g32,keybias=removed,rope=removed")
    formats = [parse_format(name) for name in names]
    assert len({kv_format.digest for kv_format in formats}) == 4
    assert [kv_format.name for kv_format in formats] == list(names)
    assert parse_format("int4-g32,keybias=kept,rope=applied") == formats[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4-g32,keybias=gone", "value of keybias 'gone' is unknown"),
        ("int4-g32,rope=no", "value of rope 'no' is unknown"),
        ("k=f16,v=int4:group32,keybias=removed", "stores keys as plain floats"),
    ],
)
def test_formats_that_remove_nothing_are_refused(text, message) -> None:
    with pytest.raises(FormatError, match=message):
        parse_format(text)


def test_a_cache_without_the_model_says_where_to_get_what_it_lacks() -> None:
    with pytest.raises(FormatError, match=r"needs the model's key bias .* QuantizedCache.for_model\(model, format\)"):
        QuantizedCache(tiny_models.tiny_config("qwen2"), "int4-g32,keybias=removed")


REFUSED: dict[str, tuple[PretrainedConfig, str, str]] = {
    "no bias": (LlamaConfig(**SMALL), "keybias=removed", "no bias in its key projections"),
    "norm": (VARIANTS["after a norm"], "keybias=removed", "normalises keys after their projection .k_norm in layer 0."),
    "dynamic": (LlamaConfig(**SMALL, **rope("dynamic", factor=2.0)), "rope=removed", "dynamic RoPE"),
    "no rotary": (
        OPTConfig(vocab_size=97, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4),
        "rope=removed",
        "no rotary position embedding",
    ),
    "one fused projection": (
        GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4),
        "keybias=removed",
        "no key projection named k_proj or qkv_proj",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_b38_models_without_what_a_format_removes_are_refused_before_the_first_token(case) -> None:
    config, step, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        QuantizedCache.for_model(model_of(config), f"int4-g32,{step}")


def test_a_model_that_makes_keys_in_an_unknown_way_is_refused() -> None:
    model = model_of(VARIANTS["default"])
    attention = model.get_decoder().layers[1].self_attn

    class Scaled(type(attention)):
        def forward(self, hidden_states, position_embeddings, **kwargs):
            cos, sin = position_embeddings
            return super().forward(hidden_states, (cos * 1.01, sin * 1.01), **kwargs)

    attention.__class__ = Scaled
    with pytest.raises(ModelError, match=r"keys of layer 1 are not its key projection"):
        key_transforms(model, parse_format("int4-g32,rope=removed"))


def test_longrope_is_refused_beyond_its_original_context() -> None:
    transform = key_transforms(model_of(VARIANTS["longrope"]), parse_format("int4-g32,rope=removed"))[0]
    keys = torch.ones(1, 2, 10, 16)
    transform.forward(keys, 118)
    with pytest.raises(ModelError, match="position 128 is beyond the model's original context of 128 tokens"):
        transform.forward(keys, 119)


def test_r8_tensors_alone_are_not_packed_under_a_format_that_needs_the_model() -> None:
    with pytest.raises(FormatError, match="removes key bias or rotary embedding, which needs the model"):
        PackedFormat(parse_format("int4-g32,keybias=removed"))


def print_table() -> None:
    """The table of docs/design/key-bias.md, mean and range of ten seeds: `python -m tests.cache.test_key_transform`."""
    options = ("", ",keybias=removed", ",rope=removed", ",keybias=removed,rope=removed")
    for codec in ("int4:group64", "int4:group64/had", "q4_0", "int4:channel32", "int8:token-head"):
        cells = []
        for option in options:
            found = [synthetic_attention_kl(f"k={codec},v=f16{option}", seed)[0] for seed in range(10)]
            cells.append(f"{sum(found) / len(found):.2g} [{min(found):.2g}, {max(found):.2g}]")
        print(f"| `{codec}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    print_table()
