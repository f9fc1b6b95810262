"""Errors and interrupts in the middle of a forward or an append: what stays is whole, or says that it is not."""

from __future__ import annotations

import sys
from itertools import count
from unittest import mock

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.page_pool import PagePool
from kvassay.errors import CacheStateError
from tests.tiny_models import VOCABULARY, tiny_model

FORMATS = ["kv=f32", "int8-token-head", "k=int4:channel32,v=int4:token/group32,sinks=4,recent=8"]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def tokens(number: int, seed: int = 0, rows: int = 2) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, number), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def run(model, cache: QuantizedCache, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, past_key_values=cache).logits


def interrupt_in_layer(model, layer: int, cache: QuantizedCache, ids: torch.Tensor) -> None:
    with (
        mock.patch.object(model.model.layers[layer].mlp, "forward", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        run(model, cache, ids)


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("number", [1, 5, 70])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_forward_that_ended_half_way_is_not_continued_and_can_be_taken_back(text, number, layer, model) -> None:
    cache = QuantizedCache(model.config, text)
    run(model, cache, tokens(100))
    cache.activate_past_recording()
    expected = run(model, cache.fork(), tokens(number, 1))
    interrupt_in_layer(model, layer, cache, tokens(number, 1))
    with pytest.raises(CacheStateError, match=rf"layer 0 holds {100 + number} tokens .* 100: .*crop\(-{number}\)"):
        run(model, cache, tokens(number, 1))
    assert cache.crop(-number) == number
    assert [layer.columns for layer in cache.quantized_layers] == [100] * 3
    if text != FORMATS[2]:  # the window was emptied before recording began
        assert torch.equal(run(model, cache, tokens(number, 1)), expected)
    else:
        run(model, cache, tokens(number, 1))
    assert cache.get_seq_length() == 100 + number


def test_rows_do_not_join_a_cache_that_an_error_left_uneven_and_it_is_not_saved(model, tmp_path) -> None:
    cache, other = (QuantizedCache(model.config, "kv=f32") for _ in range(2))
    run(model, cache, tokens(10))
    run(model, other, tokens(10))
    interrupt_in_layer(model, 0, cache, tokens(1))
    for use in (
        lambda: cache.take_rows(other),
        lambda: other.take_rows(cache),
        lambda: cache.save(tmp_path / "file"),
    ):
        with pytest.raises(Exception, match="an error ended the last forward") as caught:
            use()
        assert "crop(-1)" in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert other.batch_size == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [1, 40])
def test_an_append_interrupted_anywhere_is_not_made_or_made_or_says_so(number, model) -> None:
    """A KeyboardInterrupt at every 37th line of kvassay that an append runs, freed views included."""
    made = QuantizedCache(model.config, FORMATS[2])
    run(model, made, tokens(100))
    keys = torch.randn(2, 2, number, 64, generator=torch.Generator().manual_seed(1))

    def held(cache: QuantizedCache) -> list[torch.Tensor]:
        layer = cache.quantized_layers[0]
        return [layer.keys, layer.values]

    before = held(made)
    whole = made.fork()
    whole.quantized_layers[0].update(keys, keys * 2)
    after, outcomes = held(whole), set()
    for line in count(1, 37):
        cache, other = made.fork(), made.fork()
        if not _append_until(cache.quantized_layers[0], keys, line):
            break
        try:
            found = held(cache)
        except CacheStateError as error:
            assert "interrupted while it was written" in str(error)  # noqa: PT017  (one of three outcomes)
            outcomes.add("says so")
            cache.reset()
            run(model, cache, tokens(3))
        else:
            outcomes.add("before" if _equal(found, before) else "after")
            assert _equal(found, before) or _equal(found, after)
        assert _equal(held(other), before)
    assert outcomes == {"before", "after", "says so"}


def _equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def _append_until(layer, keys: torch.Tensor, line: int) -> bool:
    """Append, and interrupt before the line of this number; False where the append has fewer."""
    left = line

    def trace(frame, event, arg):
        nonlocal left
        if "kvassay" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        layer.update(keys, keys * 2)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(old)
    return left <= 0


def test_an_interrupt_that_freed_views_swallow_is_said_by_the_next_layer(model) -> None:
    cache = QuantizedCache(model.config, FORMATS[2])
    run(model, cache, tokens(100))
    store = next(cache.quantized_layers[0].stores)
    with (
        mock.patch.object(store, "commit", side_effect=MemoryError("no room")),
        pytest.raises(CacheStateError, match="layer 0: an append was interrupted") as caught,
    ):
        run(model, cache, tokens(20))
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("number", [1, 70])
def test_memory_that_ends_while_a_fork_appends_changes_nothing(text, rows, number, model) -> None:
    """All slabs are taken before anything is written, those for copies of shared pages too."""
    cache = QuantizedCache(model.config, text)
    run(model, cache, tokens(101, rows=rows))
    forks = [cache.fork() for _ in range(3)]
    for each in forks[:2]:
        each.batch_repeat_interleave(2)
        run(model, each, tokens(1, rows=2 * rows))
    refused = 0
    for each in (*forks, cache):
        layer = each.quantized_layers[0]
        before = [layer.keys, layer.values]
        keys = torch.randn(each.batch_size, 2, number, 64)
        with mock.patch.object(PagePool, "_add_slab", side_effect=MemoryError("no room")):
            try:
                layer.update(keys, keys * 2)
            except MemoryError:
                refused += 1
                assert _equal([layer.keys, layer.values], before)
        if layer.columns == before[0].shape[2]:
            layer.update(keys, keys * 2)
        assert layer.keys.shape[2] == before[0].shape[2] + number
    assert refused or number == 1  # one token may find room in pages that were free


@pytest.mark.parametrize("text", FORMATS)
def test_a_prompt_run_in_inference_mode_goes_on_outside(text, model) -> None:
    plain = QuantizedCache(model.config, text)
    run(model, plain, tokens(100))
    cache = QuantizedCache(model.config, text)
    with torch.inference_mode():
        model(input_ids=tokens(100), past_key_values=cache)
    for step in (1, 70, 1):
        assert torch.equal(run(model, cache, tokens(step, step)), run(model, plain, tokens(step, step)))


def test_an_offloaded_prompt_run_in_inference_mode_goes_on_outside(model, tmp_path) -> None:
    from kvassay.cache import Offload

    plain = QuantizedCache(model.config, "int8-token-head")
    cache = QuantizedCache(model.config, "int8-token-head", offload=Offload(40_000, folder=tmp_path))
    run(model, plain, tokens(200))
    with torch.inference_mode():
        model(input_ids=tokens(200), past_key_values=cache)
    for step in (1, 70, 1):
        assert torch.equal(run(model, cache, tokens(step, step)), run(model, plain, tokens(step, step)))
    assert cache.offload_counts().offloaded_nbytes
