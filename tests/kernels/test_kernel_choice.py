"""`kernel=` of a cache: the compiled kernels, the torch twin, or an error; never another one in silence."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.attention_path import AttentionPath
from kvassay.errors import CacheStateError, KernelError
from kvassay.kernels import native_state
from tests.cache.cache_configs import one_layer_config
from tests.kernels.test_fused_attention import EXACT, Layer

needs_module = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")


@needs_module
@pytest.mark.parametrize(
    ("kernel", "path"),
    [("auto", AttentionPath.FUSED), ("exact", AttentionPath.FUSED), ("reference", AttentionPath.TILED)],
)
def test_the_kernel_that_was_asked_for_is_the_one_that_ran(kernel, path) -> None:
    layer = Layer("int4-g64", kernel=kernel)
    layer.call(100, 0)
    assert layer.cache.explain()[0].next is path
    error = layer.call(1, 1)
    if path is AttentionPath.TILED:
        assert error is None  # no kernel served
        assert layer.cache.explain()[0].last is path
    else:
        assert error is not None
        assert 0 < error < EXACT


def test_exact_is_refused_where_no_kernel_reads_the_format() -> None:
    with pytest.raises(KernelError, match="kernels cannot read this layer"):
        Layer("nvfp4", kernel="exact").call(1, 0)


@needs_module
def test_forks_keep_the_kernel() -> None:
    layer = Layer("int4-g64", kernel="reference")
    layer.call(20, 0)
    assert layer.cache.fork().explain()[0].next is AttentionPath.TILED


@pytest.mark.parametrize("kernel", ["fast", "", None])
def test_an_unknown_kernel_is_refused(kernel) -> None:
    with pytest.raises(CacheStateError, match=r"kernel is .*; expected one of 'auto', 'exact', 'reference'"):
        QuantizedCache(one_layer_config(2, 3, 64), "int4-g64", kernel=kernel)


@pytest.mark.parametrize(
    ("attention", "kernel"),
    [("tiled", "exact"), ("decoded", "exact"), ("fused", "reference"), ("decoded", "reference")],
)
def test_attention_and_kernel_may_not_contradict_each_other(attention, kernel) -> None:
    with pytest.raises(CacheStateError, match=f"kernel='{kernel}' reads as .*attention='{attention}' was asked for"):
        QuantizedCache(one_layer_config(2, 3, 64), "int4-g64", attention=attention, kernel=kernel)


@needs_module
def test_a_loaded_cache_takes_its_kernel(tmp_path) -> None:
    config = one_layer_config(2, 3, 64)
    cache = QuantizedCache(config, "int4-g64")
    cache.update(torch.randn(1, 2, 20, 64), torch.randn(1, 2, 20, 64), 0)
    cache.save(tmp_path / "saved")
    loaded = QuantizedCache.load(tmp_path / "saved", config, kernel="reference")
    assert loaded.explain()[0].next is AttentionPath.TILED
