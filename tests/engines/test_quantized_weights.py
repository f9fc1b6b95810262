"""R12: weight-only quantization of the model under test."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kvassay.core.format_names import parse_format
from kvassay.core.ledger import predict_ledger
from kvassay.engines.transformers import quantized_weights
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import MissingExtraError, ModelError


@pytest.fixture(scope="module")
def pair(tiny_folder):
    pytest.importorskip("hqq")
    return load_model(str(tiny_folder)), load_model(str(tiny_folder), weights="hqq-4")


def test_linear_layers_hold_codes_and_the_rest_is_as_stored(pair) -> None:
    stored, quantized = pair
    decoder = quantized.model.get_decoder()
    assert not [name for name, module in decoder.named_modules() if type(module) is nn.Linear]
    assert torch.equal(quantized.model.get_output_embeddings().weight, stored.model.get_output_embeddings().weight)
    assert torch.equal(quantized.model.get_input_embeddings().weight, stored.model.get_input_embeddings().weight)
    record = quantized.quantized_weights
    linear = [module for module in stored.model.get_decoder().modules() if type(module) is nn.Linear]
    assert record.linear_layers == len(linear) == 14
    assert record.parameters == sum(module.weight.numel() for module in linear)
    assert record.stored_bits == pytest.approx(4 + 2 * 32 / 64)  # hqq keeps float32 scales and zero points here
    assert quantized.parameters == stored.parameters
    assert stored.quantized_weights is None


def test_codes_give_back_the_weights_to_half_a_step(pair) -> None:
    stored, quantized = pair
    before = stored.model.get_decoder().layers[0].self_attn.k_proj
    after = quantized.model.get_decoder().layers[0].self_attn.k_proj
    decoded = after.dequantize()
    assert decoded.dtype == torch.float32
    error = (decoded - before.weight).square().mean() / before.weight.square().mean()
    assert 1e-5 < float(error) < 0.02


def test_geometry_formats_and_ledgers_are_those_of_the_stored_weights(pair) -> None:
    stored, quantized = pair
    assert stored.geometry == quantized.geometry
    assert stored.hashes == quantized.hashes
    for name in ("int8-token-head", "kivi-4,recent=32", "int4-g32"):
        kv_format = parse_format(name)
        assert predict_ledger(stored.geometry, kv_format, 300) == predict_ledger(quantized.geometry, kv_format, 300)


def test_the_scorer_takes_the_quantized_model_as_its_reference(pair) -> None:
    _, quantized = pair
    scorer = DecodeScorer(quantized.model, quantized.geometry)
    ids = torch.arange(60) * 7 % 300
    reference = scorer.reference(ids)
    expected = quantized.model(ids[None], output_hidden_states=True).hidden_states[-1][0]
    assert torch.allclose(reference.hidden, expected, atol=1e-5)
    exact = scorer.candidate(ids, 30, reference, parse_format("f32"))
    assert torch.allclose(exact.hidden, reference.hidden[30:], atol=1e-4)
    # Keys before rotary embedding are found through the quantized projection.
    assert scorer.key_transforms(parse_format("kivi-4,rope=removed"))


def test_the_same_weights_are_quantized_alike_twice(pair, tiny_folder) -> None:
    assert load_model(str(tiny_folder), weights="hqq-4").quantized_weights == pair[1].quantized_weights
    assert load_model(str(tiny_folder), weights="hqq-8").quantized_weights.sha256 != pair[1].quantized_weights.sha256


def test_without_hqq_the_error_names_the_extra(tiny_folder, monkeypatch) -> None:
    monkeypatch.setattr(quantized_weights, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"need hqq, not installed.*kvassay\[weights\].*'stored'"):
        load_model(str(tiny_folder), weights="hqq-4")


def test_an_unknown_precision_is_refused(tiny_folder) -> None:
    with pytest.raises(ModelError, match="found weights 'int4'; expected one of stored, hqq-8, hqq-4"):
        load_model(str(tiny_folder), weights="int4")
