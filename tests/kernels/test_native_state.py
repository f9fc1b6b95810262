"""What kvassay says where its compiled module is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from kvassay.cache import QuantizedCache
from kvassay.cache.attention_path import AttentionPath
from kvassay.cli.doctor import kernels_line
from kvassay.errors import KernelError
from kvassay.kernels import native_state
from kvassay.kernels.native import native_module
from tests.cache.cache_configs import one_layer_config
from tests.cache.test_attention_paths import draw

NAME = "kvassay.kernels._native"


@pytest.fixture
def without_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As after an installation without a compiler."""
    monkeypatch.setitem(sys.modules, NAME, None)
    native_state.cache_clear()
    yield
    native_state.cache_clear()


def test_a_missing_module_is_said_with_the_way_out(without_module: None) -> None:
    assert native_state().instruction_sets == ()
    assert "install g++" in (native_state().missing or "")
    assert kernels_line().startswith("kernels: none, attention reads pages in torch; kvassay was installed without")
    with pytest.raises(KernelError, match="--force-reinstall"):
        native_module()


def test_a_cache_reads_by_tiles_then_and_refuses_kernels(without_module: None) -> None:
    cache = QuantizedCache(one_layer_config(2, 3, 64), "int4-g64")
    assert cache.explain()[0].next is AttentionPath.TILED
    assert "kernels do not: kvassay was installed without its compiled module" in cache.explain()[0].reason
    fused = QuantizedCache(one_layer_config(2, 3, 64), "int4-g64", attention="fused")
    with pytest.raises(KernelError, match="without its compiled module"):
        fused.update(draw(1, 1, 2, 5, 64), draw(2, 1, 2, 5, 64), 0)


@pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")
def test_doctor_names_what_runs_here() -> None:
    assert kernels_line() == f"kernels: exact by {', '.join(native_state().instruction_sets)}; reference in torch"
    assert importlib.import_module(NAME).thread_source() in ("openmp", "own")
