"""A cache inside torch.compile, torch.export and torch.jit.trace: the same numbers, or a sentence."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention_path import AttentionPath
from kvassay.errors import CacheStateError
from tests import tiny_models
from tests.cache.cache_states import append, held, new_cache

IDS = torch.arange(3, 43)[None]
FORMAT = "kivi-4,recent=4,sinks=2"


def run(model, call, attention: str) -> tuple[torch.Tensor, QuantizedCache]:
    cache = QuantizedCache(model.config, FORMAT, attention=attention)
    with torch.no_grad():
        parts = [call(input_ids=IDS[:, begin:end], cache=cache).logits for begin, end in ((0, 30), (30, 38), (38, 39))]
    return torch.cat(parts, dim=1), cache


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "attention"), [("sdpa", "tiled"), ("eager", "decoded")])
def test_b14_a_compiled_model_reads_the_same_cache(implementation, attention) -> None:
    model = tiny_models.tiny_model("llama")
    model.set_attn_implementation(implementation)
    expected, one = run(model, model, attention)
    torch._dynamo.reset()
    found, other = run(model, torch.compile(model, backend="eager"), attention)
    assert torch.equal(found, expected)
    assert other.explain()[0].last is one.explain()[0].last is AttentionPath[attention.upper()]
    for left, right in zip(held(one), held(other), strict=True):
        assert torch.equal(left, right)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call torch\.compile without fullgraph=True"):
        run(model, torch.compile(model, backend="eager", fullgraph=True), attention)


class WithCache(torch.nn.Module):
    """A model that makes its own cache, as a wrapper for export would."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, cache=QuantizedCache(self.model.config, FORMAT)).logits


@pytest.mark.parametrize(
    "capture", [lambda module: torch.export.export(module, (IDS,), strict=False), lambda m: torch.jit.trace(m, (IDS,))]
)
def test_b14_export_and_trace_are_refused_and_told_the_way_out(capture) -> None:
    module = WithCache(tiny_models.tiny_model("llama"))
    with pytest.raises(CacheStateError, match=r"export the model without a cache, or run it with torch\.compile"):
        capture(module)
    with torch.no_grad():
        assert module(IDS).shape == (1, IDS.shape[1], tiny_models.VOCABULARY)


def test_b14_a_cache_is_no_input_of_an_exported_program() -> None:
    model = tiny_models.tiny_model("llama")
    with pytest.raises(ValueError, match=r"Unsupported input type .*QuantizedCache"):
        torch.export.export(model, (IDS,), {"cache": QuantizedCache(model.config, FORMAT)}, strict=False)


def test_b14_reading_uses_the_very_scales_that_calibration_wrote() -> None:
    cache = new_cache("int8-tensor")
    append(cache, 20, 1, rows=1)
    before = [side.clone() for side in held(cache)]
    for layer in cache.quantized_layers:
        for sides in layer.calibration:
            for calibration in sides:
                assert calibration is not None
                for scale in calibration.parameters.values():
                    scale.mul_(2)
    for one, other in zip(before, held(cache), strict=True):
        assert torch.equal(one * 2, other)
