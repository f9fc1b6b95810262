"""Calibrating a model on texts: the scales are those of the keys and values that its own cache would hold."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import kvassay
from kvassay.cache import QuantizedCache
from kvassay.cache.model_keys import key_transforms
from kvassay.core.format_names import parse_format
from kvassay.errors import CalibrationError, FormatError
from kvassay.formats import quantizer
from kvassay.formats.calibration import LeastError, MinMax, Percentile
from tests.tiny_models import VOCABULARY, tiny_model

DRAW = torch.Generator().manual_seed(4)
SAMPLES = [torch.randint(3, VOCABULARY, (length,), generator=DRAW) for length in (50, 30, 41)]
FORMATS = [
    "int8-tensor",
    "kv=int4:head",
    "k=int8:channel/mean,v=f16",
    "kv=int8:tensor,skip=1",
    "kv=int4:tensor,@1h1.k=f16",
]


def own_cache(model) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Keys and values of all samples by layer, from transformers' own cache."""
    caches = []
    with torch.inference_mode():
        for ids in SAMPLES:
            cache = DynamicCache()
            model.get_decoder()(ids[None], cache=cache, use_cache=True)
            caches.append(cache)
    layers = range(len(caches[0].layers))
    keys = [torch.cat([cache.layers[layer].keys for cache in caches], dim=2) for layer in layers]
    return keys, [torch.cat([cache.layers[layer].values for cache in caches], dim=2) for layer in layers]


@pytest.mark.parametrize("policy", ["min-max", "percentile 99", "least-error"])
@pytest.mark.parametrize("text", FORMATS)
def test_b08_scales_are_those_of_the_models_own_cache(text, policy) -> None:
    model, kv_format = tiny_model("llama"), parse_format(text)
    chosen = {"min-max": MinMax(), "percentile 99": Percentile(99), "least-error": LeastError()}[policy]
    found = kvassay.calibrate(model, kv_format, SAMPLES, policy=policy)
    keys, values = own_cache(model)
    assert found.keys() == {0, 1, 2} - set(kv_format.skip_layers)
    heads = {0: [[0, 1]], 1: [[0], [1]] if kv_format.overrides else [[0, 1]], 2: [[0, 1]]}
    checked = 0
    for layer, groups in found.items():
        for own, group in zip(heads[layer], groups, strict=True):
            for side, spec, x in zip(group, (kv_format.keys, kv_format.values), (keys, values), strict=True):
                if side is None:
                    continue
                expected = quantizer(spec).calibrate(x[layer][:, own], chosen)
                assert side.source == expected.source
                assert side.parameters.keys() == expected.parameters.keys()
                for name, array in expected.parameters.items():
                    torch.testing.assert_close(side.parameters[name], array, rtol=1e-6, atol=0)
                checked += 1
    assert checked >= 3


@pytest.mark.parametrize("steps", ["keybias=removed", "rope=removed", "keybias=removed,rope=removed"])
def test_keys_are_calibrated_as_they_are_stored(steps) -> None:
    """Without bias or rotary embedding, each sample from its own position 0."""
    model = tiny_model("qwen2")
    text = f"k=int8:tensor,v=f16,{steps}"
    transform = key_transforms(model, parse_format(text))[0]
    keys, _ = own_cache(model)
    lengths = [len(ids) for ids in SAMPLES]
    parts = [transform.forward(part, 0) for part in keys[0].split(lengths, dim=2)]
    largest = max(float(part.abs().max()) for part in parts)
    side = kvassay.calibrate(model, text, SAMPLES)[0][0][0]
    assert side is not None
    assert float(side.parameters["scale"]) == pytest.approx(largest / 127, rel=1e-5)


def test_the_cache_takes_what_comes_back() -> None:
    model = tiny_model("llama")
    scales = kvassay.calibrate(model, "int8-tensor", SAMPLES, policy="mse")
    cache = QuantizedCache(model.config, "int8-tensor", calibration=scales, on_clip="count")
    model.generate(SAMPLES[1][None], cache=cache, max_new_tokens=5)
    assert cache.get_seq_length() >= 34


def as_words(text: str) -> dict:
    return {"input_ids": [1, *(3 + len(word) for word in text.split())]}


def test_samples_may_be_texts_rows_lists_or_one_text() -> None:
    model, (ids, *_) = tiny_model("llama"), SAMPLES
    same = [ids, [ids], [ids.tolist()], ids.tolist(), ids[None], ids.to(torch.int32)]
    expected = kvassay.calibrate(model, "int8-tensor", [ids])
    for samples in same:
        found = kvassay.calibrate(model, "int8-tensor", samples)
        assert torch.equal(found[1][0][0].parameters["scale"], expected[1][0][0].parameters["scale"])
    text = "a text of seven words and more"
    one = kvassay.calibrate(model, "int8-tensor", text, tokenizer=as_words)
    two = kvassay.calibrate(model, "int8-tensor", [as_words(text)["input_ids"]])
    assert one[0][0][0].source == two[0][0][0].source == "calibrated(min-max, n=8 tokens)"


def test_a_format_without_static_scales_needs_none() -> None:
    assert kvassay.calibrate(tiny_model("llama"), "kivi-4", SAMPLES) == {}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples were given"),
        ("", r"sample 0 is a text; pass tokenizer="),
        (["a text"], r"sample 0 is a text; pass tokenizer="),
        ([[1, 2], []], r"sample 1 is .* of shape \[0\]"),
        ([[[1, 2]]], r"sample 0 is torch.int64 of shape \[1, 2\]; expected token ids of shape \[tokens\]"),
        ([[0.5, 1.0]], "sample 0 is torch.float32"),
        ([[True, False]], "sample 0 is torch.bool"),
        ([{"input_ids": [1]}], "sample 0 is neither a text nor token ids"),
        ([[1, VOCABULARY]], f"sample 0 has ids from 1 to {VOCABULARY}, the model has {VOCABULARY}"),
        ([[-1, 4]], "sample 0 has ids from -1 to 4"),
        ([[1] * 257], "sample 0 has 257 tokens, the model a context of 256"),
    ],
)
def test_samples_that_cannot_be_used_are_named(samples, message) -> None:
    with pytest.raises(CalibrationError, match=message):
        kvassay.calibrate(tiny_model("llama"), "int8-tensor", samples)


def test_policy_and_format_are_refused_before_the_model_runs() -> None:
    model = tiny_model("llama")
    model.get_decoder = None  # type: ignore[method-assign]
    with pytest.raises(CalibrationError, match="calibration policy 'best' is unknown"):
        kvassay.calibrate(model, "int8-tensor", SAMPLES, policy="best")
    with pytest.raises(FormatError, match="names layer 9"):
        kvassay.calibrate(model, "int8-tensor,skip=9", SAMPLES)
