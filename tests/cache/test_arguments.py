"""Arguments of a wrong kind are refused in words; none is rounded or taken for a default in silence."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.errors import CacheStateError, FormatError, GeometryError
from tests.tiny_models import tiny_config, tiny_model

CONFIG = tiny_config("llama")


def filled(rows: int = 2) -> QuantizedCache:
    cache = QuantizedCache(CONFIG, "int8-token-head")
    for layer in range(3):
        keys = torch.randn(rows, 2, 30, 64)
        cache.update(keys, keys, layer)
    return cache


@pytest.mark.parametrize("given", [None, 5, b"kivi-4", ["kivi-4"], CONFIG])
def test_what_is_no_format_is_refused(given) -> None:
    with pytest.raises(FormatError, match="was given as format; expected a name such as"):
        QuantizedCache(CONFIG, given)


@pytest.mark.parametrize("given", [None, "smollm2-135m", {"model_type": "llama"}])
def test_what_is_no_config_is_refused(given) -> None:
    with pytest.raises(GeometryError, match=r"was given as config; expected model\.config"):
        QuantizedCache(given, "kivi-4")


def test_a_model_in_the_place_of_its_config_is_told_the_way() -> None:
    with pytest.raises(GeometryError, match=r"for_model\(model, format\)"):
        QuantizedCache(tiny_model("llama"), "kivi-4")


@pytest.mark.parametrize("name", ["attention", "on_clip"])
def test_a_choice_that_does_not_exist_is_no_default(name) -> None:
    with pytest.raises(CacheStateError, match=f"{name} is 'flash'; expected one of"):
        QuantizedCache(CONFIG, "kivi-4", **{name: "flash"})


@pytest.mark.parametrize("given", [[], [-1], [1.5], ["a"], 5, torch.tensor(3), torch.tensor([1.7])])
def test_padding_that_is_no_count_is_refused(given) -> None:
    with pytest.raises(GeometryError, match=r"left_padding is .* expected a sequence of one count"):
        QuantizedCache(CONFIG, "kivi-4", left_padding=given)


@pytest.mark.parametrize("number", [-0.5, None, "1", torch.tensor(-1.0)])
def test_a_crop_by_what_is_no_whole_number_changes_nothing(number) -> None:
    cache = filled()
    with pytest.raises(CacheStateError, match="expected a whole number"):
        cache.crop(number)
    assert cache.get_seq_length() == 30


@pytest.mark.parametrize("number", [0, -1, 2.5, None])
def test_rows_are_not_repeated_by_less_than_one(number) -> None:
    cache = filled()
    with pytest.raises(CacheStateError, match="batch_repeat_interleave got"):
        cache.batch_repeat_interleave(number)
    assert cache.batch_size == 2


def test_rows_named_by_fractions_are_refused() -> None:
    cache = filled()
    with pytest.raises(CacheStateError, match="expected whole numbers"):
        cache.reorder_cache(torch.tensor([0.0, 1.7]))
    assert cache.batch_size == 2


@pytest.mark.parametrize("none", [torch.tensor([], dtype=torch.long), torch.tensor([]), torch.tensor([False, False])])
def test_a_cache_that_keeps_no_row_is_empty_and_begins_anew(none) -> None:
    cache = filled()
    cache.batch_select_indices(none)
    assert cache.get_seq_length() == 0
    for layer in range(3):
        keys = torch.randn(3, 2, 7, 64)
        cache.update(keys, keys, layer)
    assert cache.get_seq_length() == 7
    assert cache.batch_size == 3
    assert cache.ledger().batch == 3


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_the_config_has_not_is_refused(layer) -> None:
    keys = torch.zeros(1, 2, 3, 64)
    with pytest.raises(GeometryError, match=rf"layer {layer} came, and the cache was made for layers 0 to 2"):
        QuantizedCache(CONFIG, "kivi-4").update(keys, keys, layer)


def test_more_padding_than_columns_is_trimmed_to_nothing_and_no_further() -> None:
    cache = QuantizedCache(CONFIG, "kivi-4", left_padding=[50, 60])
    for layer in range(3):
        keys = torch.randn(2, 2, 6, 64)
        cache.update(keys, keys, layer)
    assert cache.trim_padding() == 6
    assert cache.get_seq_length() == 0
    assert cache.left_padding == (44, 54)
