"""The one-pass scorer computes what a stepwise run on a real cache of the same format computes."""

from __future__ import annotations

import contextlib

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.errors import ModelError, NonFiniteError
from tests import tiny_models
from tests.thorough import pairs

TOKENS = 90
PROMPT = 41

FORMATS = [
    *(preset.name for preset in PRESETS),
    "kivi-4,recent=8",
    "kivi-2,recent=0,sinks=4",
    "kivi-4,recent=5,sinks=3,skip=1",
    "int4-g32,recent=16",
    "int8-token-head,sinks=4",
    "q4_0,recent=30,sinks=2",
    "k=int8:token-head,v=int4:group32,recent=7",
    "k=f16,v=int2:group16",
    "k=int4:channel16,v=f16",
    "kv=int4:group16/sym,exact=bf16,recent=3",
    "kv=int4:channel16/scale=f32",
    "k=int3:group32/had/seed=5,v=int5:token-head,recent=6",
    "k=int8:channel/mean,v=fp8-e4m3:head",
    "kv=int4:block8x32,recent=3,sinks=2",
    "int4-g32,recent=5,@1=int8:token,@2h1.k=int2:channel16,@2h0.v=f16",
]


KEY_STEPS = {
    "llama": ["rope=removed"],
    "qwen2": ["rope=removed", "keybias=removed", "keybias=removed,rope=removed"],
    "gemma2": ["rope=removed"],
    "gemma3": ["rope=removed"],
    "gpt_oss": ["rope=removed", "keybias=removed", "keybias=removed,rope=removed"],
}
"""What each model has to remove: Qwen2 and GPT-OSS have a key bias; Gemma 3 has its own RoPE in sliding layers."""
KEY_STEP_FORMATS = [
    "int4-g32",
    "kivi-2,recent=4,sinks=3",
    "k=int8:channel/mean,v=f16",
    "int4-g32,recent=5,@1=int8:token,@2h1.k=int2:channel16,@2h0.k=f16,skip=0",
]


def scorer_of(model, prefill_reads="exact") -> DecodeScorer:
    return DecodeScorer(model, geometry_from_config(model.config.to_dict()), prefill_reads)


def stepwise_hidden(model, token_ids, prompt_tokens, kv_format, calibration) -> torch.Tensor:
    """Prefill in one call, then one token a call, over the real cache."""
    cache = QuantizedCache.for_model(model, kv_format, calibration=calibration, on_clip="count")
    decoder = model.get_decoder()
    states = []
    with torch.inference_mode():
        if prompt_tokens:
            decoder(token_ids[None, :prompt_tokens], cache=cache, use_cache=True)
        for position in range(prompt_tokens, len(token_ids)):
            step = decoder(token_ids[None, position : position + 1], cache=cache, use_cache=True)
            states.append(step.last_hidden_state[0])
    return torch.cat(states)


def assert_equal_logits(scorer, found, expected) -> None:
    torch.testing.assert_close(scorer.output_head(found), scorer.output_head(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("format_name", "model_name"), pairs(FORMATS, tiny_models.NAMES))
def test_r52_one_pass_equals_stepwise_decoding(model_name, format_name) -> None:
    """On one of two texts: the norms of some models compute in float32 whatever the model's dtype, and their last digit
    may tip a value over the edge between two codes. That happens on some texts; a wrong schedule differs on all.
    """
    model = tiny_models.tiny_model(model_name)
    scorer = scorer_of(model)
    kv_format = parse_format(format_name)
    for seed in (5, 6):
        token_ids = torch.randint(3, tiny_models.VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(seed))
        reference = scorer.reference(token_ids)
        calibration = scorer.calibrate(kv_format, [reference])
        found = scorer.candidate(token_ids, PROMPT, reference, kv_format, calibration)
        expected = stepwise_hidden(model, token_ids, PROMPT, kv_format, calibration)
        with contextlib.suppress(AssertionError):
            assert_equal_logits(scorer, found.hidden, expected)
            return
    assert_equal_logits(scorer, found.hidden, expected)


@pytest.mark.parametrize(
    ("model_steps", "format_name"),
    pairs([(name, step) for name in KEY_STEPS for step in KEY_STEPS[name]], KEY_STEP_FORMATS, each=2),
)
def test_one_pass_equals_stepwise_decoding_with_bias_or_rope_removed(model_steps, format_name) -> None:
    model_name, steps = model_steps
    test_r52_one_pass_equals_stepwise_decoding(model_name, f"{format_name},{steps}")


@pytest.mark.parametrize("model_name", tiny_models.NAMES)
@pytest.mark.parametrize("format_name", ["int8-token-head", "kivi-2,recent=0,sinks=4", "q4_0,recent=30,sinks=2"])
def test_prefill_that_reads_stored_values_equals_a_run_token_by_token(model_name, format_name) -> None:
    model = tiny_models.tiny_model(model_name)
    scorer = scorer_of(model, "stored")
    token_ids = torch.randint(3, tiny_models.VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(6))
    kv_format = parse_format(format_name)

    found = scorer.candidate(token_ids, PROMPT, scorer.reference(token_ids), kv_format)
    expected = stepwise_hidden(model, token_ids, 0, kv_format, None)[PROMPT:]

    assert_equal_logits(scorer, found.hidden, expected)


def test_identity_format_reads_nothing_from_codes() -> None:
    model = tiny_models.tiny_model("llama")
    scorer = scorer_of(model)
    token_ids = torch.arange(3, 3 + TOKENS)
    reference = scorer.reference(token_ids)
    identity = scorer.candidate(token_ids, PROMPT, reference, parse_format("f32"))

    assert int(identity.stored_reads.sum()) == 0
    assert identity.counts.encoded_values == 0
    assert_equal_logits(scorer, identity.hidden, reference.hidden[PROMPT:])


def test_stored_reads_count_the_older_tokens_that_came_from_codes() -> None:
    scorer = scorer_of(tiny_models.tiny_model("llama"))
    token_ids = torch.arange(3, 3 + TOKENS)
    reference = scorer.reference(token_ids)

    every_token = scorer.candidate(token_ids, PROMPT, reference, parse_format("int8-token-head"))
    windowed = scorer.candidate(token_ids, PROMPT, reference, parse_format("int8-token-head,recent=16,sinks=4"))

    assert every_token.stored_reads.tolist() == list(range(PROMPT, TOKENS))
    assert windowed.stored_reads.tolist() == [n + 1 - 16 - 4 for n in range(PROMPT, TOKENS)]


def test_a_longer_document_leaves_earlier_positions_unchanged() -> None:
    """B46: codes never change once written, so later tokens cannot move an earlier position."""
    scorer = scorer_of(tiny_models.tiny_model("qwen2"))
    token_ids = torch.randint(3, tiny_models.VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(7))
    kv_format = parse_format("kivi-2,recent=8")
    whole = scorer.candidate(token_ids, PROMPT, scorer.reference(token_ids), kv_format)
    part = scorer.candidate(token_ids[:70], PROMPT, scorer.reference(token_ids[:70]), kv_format)

    assert_equal_logits(scorer, part.hidden, whole.hidden[: 70 - PROMPT])


def test_nan_in_keys_is_counted_and_named() -> None:
    model = tiny_models.tiny_model("llama")
    scorer = scorer_of(model)
    token_ids = torch.arange(3, 3 + TOKENS)
    reference = scorer.reference(token_ids)
    with torch.inference_mode():
        reference.keys[1][0, 0, 5, 3] = torch.nan

    with pytest.raises(NonFiniteError, match=r"keys of layer 1: entries hold 1 NaN and 0 infinite"):
        scorer.candidate(token_ids, PROMPT, reference, parse_format("int8-token-head"))


def test_a_model_that_bypasses_the_attention_registry_is_refused() -> None:
    model = tiny_models.tiny_model("llama")
    attention = model.model.layers[1].self_attn
    attention.config = type(attention.config).from_dict(attention.config.to_dict())  # no longer switched with the rest

    with pytest.raises(ModelError, match=r"layers \[1\] does not go through"):
        scorer_of(model)


def test_a_model_with_another_attention_rule_is_refused() -> None:
    model = tiny_models.tiny_model("llama")

    class Shifted(type(model.model.layers[0].self_attn)):
        def forward(self, *args, **kwargs):
            self.scaling *= 2 if self.config._attn_implementation == "kvassay_decode" else 1
            return super().forward(*args, **kwargs)

    model.model.layers[0].self_attn.__class__ = Shifted
    with pytest.raises(ModelError, match="differs by"):
        scorer_of(model)


def test_a_model_whose_decoder_is_something_else_is_a_model_error() -> None:
    """ModernBERT's decoder calls its output projection `decoder`, and that is what get_decoder gives."""
    from transformers import ModernBertDecoderConfig, ModernBertDecoderForCausalLM

    config = ModernBertDecoderConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0
    )
    with pytest.raises(ModelError, match=r"^ModernBertDecoderForCausalLM cannot be scored: .*TypeError"):
        scorer_of(ModernBertDecoderForCausalLM(config).eval())


@pytest.mark.parametrize("part", ["get_decoder", "get_output_embeddings"])
@pytest.mark.parametrize("found", [None, torch.nn.Identity(), torch.nn.Linear(3, 3), 7])
def test_any_odd_part_of_a_model_is_a_model_error(part, found, monkeypatch) -> None:
    model = tiny_models.tiny_model("llama")
    monkeypatch.setattr(model, part, lambda: found, raising=False)
    with pytest.raises(ModelError, match="LlamaForCausalLM"):
        scorer_of(model)


def test_a_context_shorter_than_the_check_will_do() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=97, n_positions=24, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    scorer = scorer_of(GPT2LMHeadModel(config).eval())
    assert scorer.reference(torch.arange(24)).hidden.shape == (24, 32)


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, 48),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 32,
                "long_factor": [4.0] * 32,
                "original_max_position_embeddings": 60,
            },
            60,
        ),
    ],
)
def test_rotary_frequencies_that_follow_the_length_are_refused_beyond_their_limit(rope, limit) -> None:
    """One pass would rotate early keys by the frequencies of the whole length, a run by steps by those of its time."""
    model = tiny_models.tiny_model("llama", rope_parameters=rope, max_position_embeddings=48)
    scorer = scorer_of(model)
    kv_format = parse_format("int8-token-head")
    token_ids = torch.arange(3, 3 + limit)
    found = scorer.candidate(token_ids, 20, scorer.reference(token_ids), kv_format)
    assert_equal_logits(scorer, found.hidden, stepwise_hidden(model, token_ids, 20, kv_format, None))
    with pytest.raises(ModelError, match=f"frequencies change beyond {limit} tokens"):
        scorer.reference(torch.arange(3, 4 + limit))
