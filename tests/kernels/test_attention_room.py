"""What kernels work out from odd queries, and from what an earlier call left in the memory that they work in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cache.attention_path import AttentionPath
from kvassay.cache.packed_view import PackedView
from kvassay.kernels import native_state
from kvassay.kernels.native import INSTRUCTION_SET_VARIABLE
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_attention_paths import causal, defined, draw

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

EXACT = 4e-4
KV_HEADS, RATIO, DIM, TOKENS = 2, 3, 64, 100


@pytest.fixture(params=native_state().instruction_sets, autouse=True)
def each_set(request, monkeypatch) -> None:
    """Every instruction set that this processor has, in turn."""
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, request.param)


@pytest.fixture
def one_thread():
    """Whose memory all calls work in."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def error_of(name: str, query: Tensor) -> float:
    """Relative error of a decode step over a filled cache."""
    keys, values = draw(1, 1, KV_HEADS, TOKENS, DIM), draw(2, 1, KV_HEADS, TOKENS, DIM)
    cache = QuantizedCache(one_layer_config(KV_HEADS, RATIO, DIM), name)
    cache.update(keys[:, :, :-1], values[:, :, :-1], 0)
    packed = cache.update(keys[:, :, -1:], values[:, :, -1:], 0)
    module = nn.Module()
    module.is_causal, module.num_key_value_groups = True, RATIO
    out, _ = packed_attention(module, query, *packed, None, scaling=0.3)
    assert cache.explain()[0].last is AttentionPath.FUSED
    seen_keys, seen_values = (each.decode() for each in packed if isinstance(each, PackedView))
    expected = defined(query, seen_keys, seen_values, causal(1, 1, TOKENS, (0,)), 0.3)
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("step", [100, 200])
@pytest.mark.parametrize("keys", ["nf4:channel32/asym", "nf4:channel32", "int4:channel32", "fp8-e4m3:token-head"])
def test_what_a_call_leaves_behind_changes_no_later_one(keys, step, one_thread) -> None:
    """Small negative steps of an int4 cache are the bits of NaN: in pairs of 16 bits, or in quads of bytes."""
    poison = torch.full((1, KV_HEADS * RATIO, 1, DIM), -step / 32700)
    poison[..., 0] = 1
    error_of("kv=int4:token-head,recent=4", poison)
    assert error_of(f"k={keys},v=int4:token-head,recent=4", draw(3, 1, KV_HEADS * RATIO, 1, DIM)) < EXACT


@pytest.mark.parametrize("magnitude", [1e-37, 1e-34, 1e-30])
@pytest.mark.parametrize("name", ["int8-token-head", "int4-g64", "kv=int4:group32/sym", "kivi-4", "nf4-g64"])
def test_a_query_of_next_to_nothing_sees_all_tokens_alike(name, magnitude) -> None:
    """What it would be multiplied with to be rounded is no float any more."""
    assert error_of(name, magnitude * draw(3, 1, KV_HEADS * RATIO, 1, DIM)) < EXACT
