"""A forward over stored tokens as one graph of torch.compile: numbers and bytes of the model that is not compiled."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from kvassay.cache import QuantizedCache
from kvassay.cache.attention_path import AttentionPath
from kvassay.errors import CacheStateError
from kvassay.kernels import native_state
from tests import tiny_models
from tests.cache.cache_states import held

IDS = torch.arange(3, 48).expand(2, -1)
PARTS = [(30, 38), *((first, first + 1) for first in range(38, IDS.shape[1]))]
"""A chunk and single tokens, past the recent window and the bound of a block."""


def run(model, call, kv_format: str, attention="auto") -> tuple[torch.Tensor, QuantizedCache]:
    """The prompt by the model itself, the rest by `call`."""
    cache = QuantizedCache(model.config, kv_format, attention=attention)
    with torch.no_grad():
        model(input_ids=IDS[:, :30], cache=cache)
        logits = [call(input_ids=IDS[:, begin:end], cache=cache).logits for begin, end in PARTS]
    return torch.cat(logits, dim=1), cache


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kv_format", "attention"),
    [
        ("llama", "kivi-4,recent=4,sinks=2", "auto"),
        ("llama", "int4-g64", "auto"),
        ("llama", "int4-g64", "tiled"),
        ("gemma2", "int8-token-head", "auto"),
    ],
)
def test_b14_decoding_is_one_graph_with_the_same_numbers(name, kv_format, attention) -> None:
    model = tiny_models.tiny_model(name).float()
    model.set_attn_implementation("kvassay")
    expected, one = run(model, model, kv_format, attention)
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counted, fullgraph=True)
    found, other = run(model, compiled, kv_format, attention)
    assert torch.equal(found, expected)
    assert other.explain()[0].last is one.explain()[0].last
    if native_state().missing is None:
        assert one.explain()[0].last is (AttentionPath.TILED if attention == "tiled" else AttentionPath.FUSED)
    for left, right in zip(held(one), held(other), strict=True):
        assert torch.equal(left, right)
    for _ in range(3):
        graphs = counted.frame_count
        again = run(model, compiled, kv_format, attention)[0]
        assert torch.equal(again, expected)
    # Lengths and numbers of caches became symbols: a further cache compiles nothing.
    assert counted.frame_count == graphs


def test_b14_keys_that_are_not_attended_to_are_no_numbers() -> None:
    model = tiny_models.tiny_model("llama").float()
    cache = QuantizedCache(model.config, "int4-g64")
    with torch.no_grad():
        model(input_ids=IDS[:, :30], cache=cache)
    new = torch.ones(2, 2, 1, 64)
    torch._dynamo.reset()
    read = torch.compile(lambda keys: cache.update(keys, keys, 0)[0] + 1, backend="eager", fullgraph=True)
    assert read(new).isnan().all()
    # Nor does anything else attend to them in their place.
    plain = torch.compile(model, backend="eager")
    with torch.no_grad():
        expected, found = (call(input_ids=IDS, use_cache=False).logits for call in (model, plain))
    assert torch.equal(found, expected)


def test_an_operator_without_its_cache_says_so() -> None:
    states = torch.ones(1, 1, 1, 16)
    with pytest.raises(CacheStateError, match="call the model with a cache that is kept"):
        torch.ops.kvassay.append(states, states, 10**9, 0, 1)
    with pytest.raises(CacheStateError, match="keys that it did not append"):
        torch.ops.kvassay.attend(states, states, states, None, None, 1.0, None, 10**9, 0)
