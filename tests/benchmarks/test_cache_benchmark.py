"""The cache benchmark in small: every kind of arm runs, its bytes are all bytes, its tables say what ran."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.cache.__main__ import main, markdown, row
from benchmarks.cache.arms import DEFAULT_ARMS, parse_arm
from benchmarks.cache.storages import storage_nbytes
from transformers import DynamicCache
from transformers import QuantizedCache as TransformersQuantizedCache

from kvassay.cache import QuantizedCache
from tests.tiny_models import tiny_config

CONFIG = tiny_config("llama")
LAYERS, HEADS, DIM = 3, 2, 64


def filled(cache, tokens: int = 192, batch: int = 2):
    for layer in range(LAYERS):
        states = torch.randn(batch, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(layer))
        cache.update(states, states + 1, layer)
    return cache


@pytest.mark.parametrize("name", ["f16", "int8-token-head", "int4-g64", "kivi-2", "kivi-4,recent=32", "q4_0"])
def test_b61_storages_of_a_cache_are_what_its_ledger_says(name) -> None:
    cache = filled(QuantizedCache(CONFIG, name))
    assert storage_nbytes(cache) == cache.ledger().persistent_nbytes


def test_storages_of_other_caches_are_counted_once_and_with_scales() -> None:
    values = 2 * LAYERS * 2 * HEADS * 192 * DIM
    assert storage_nbytes(filled(DynamicCache(config=CONFIG))) == 4 * values
    for backend, itemsize in (("quanto", 4), ("hqq", 4)):
        cache = filled(TransformersQuantizedCache(backend=backend, config=CONFIG, nbits=4))
        assert storage_nbytes(cache) == values // 2 + 2 * itemsize * values // 64, backend
    shared = torch.zeros(100)
    assert storage_nbytes({"a": shared, "b": [shared[10:], shared.view(10, 10)], "model": torch.nn.Linear(9, 9)}) == 400


@pytest.mark.parametrize("name", DEFAULT_ARMS)
def test_default_arms_read_back(name) -> None:
    assert parse_arm(name).name == name


@pytest.mark.parametrize("name", ["dynamic", "dynamic-f64", "transformers:awq-4", "transformers:quanto-x", "f16"])
def test_an_unknown_arm_is_refused_by_name(name) -> None:
    with pytest.raises(ValueError, match="is unknown; use for example dynamic-f32"):
        parse_arm(name)


def test_an_arm_that_did_not_run_says_why_and_has_no_figures() -> None:
    one = row("transformers:hqq-4", ["ImportError: no hqq"])
    assert one == {"arm": "transformers:hqq-4", "did_not_run": "ImportError: no hqq"}
    assert "did not run: ImportError: no hqq" in markdown([one])


@pytest.mark.slow
@pytest.mark.parametrize("prefill", ["synthetic", "model"])
def test_r29_r103_a_quick_run_of_three_arms(prefill, tiny_folder, tmp_path) -> None:
    out = tmp_path / "table.json"
    arguments = ["--context", "200", "--batch", "2", "--tokens", "2", "--rounds", "1", "--chunk", "64"]
    arms = ["dynamic-f32", "kvassay:kivi-4", "transformers:quanto-4"]
    options = [part for arm in arms for part in ("--arm", arm)]
    main([str(tiny_folder), *arguments, "--prefill", prefill, *options, "--json", str(out)])
    document = json.loads(out.read_text())
    plain, ours, theirs = document["arms"]
    assert [one["arm"] for one in document["arms"]] == arms
    assert document["settings"]["prefill"] == prefill
    for one in document["arms"]:
        assert one["held_tokens"] == 204
        assert len(one["step_s"][0]) == 2
        assert one["prefill_peak_nbytes"] >= one["persistent_nbytes"] / 2
        assert one["decode_transient_nbytes"] > 0
    assert plain["ratio_to_float16"] == 2.0
    assert ours["persistent_nbytes"] == ours["ledger_nbytes"] == ours["predicted_nbytes"]
    assert theirs["ratio_to_float16"] < 1
    assert theirs["ledger_nbytes"] is None
