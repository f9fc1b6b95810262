"""Save and load of a whole cache: the same bits in every format and state, also in another process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from safetensors import safe_open

from kvassay.cache import QuantizedCache
from kvassay.cache.page_pool import PagePool
from kvassay.core.paging import TAIL_PAGE_TOKENS
from kvassay.core.saved_header import SavedCohort, SavedHeader, SavedLayer, SavedPool, SavedRun, SavedStore
from kvassay.errors import RangeError, SavedCacheError
from tests.cache.cache_states import FORMATS, STATES, append, calibration_for, held, new_cache, prompt, shared, slid
from tests.cache.saved_files import take_apart
from tests.cache.test_operations import CacheMachine, small_config
from tests.golden.make_saved_cache_schema import SCHEMA, schema_text
from tests.tiny_models import VOCABULARY, tiny_model

STEPS = int(os.environ.get("KVASSAY_CACHE_STEPS", "150"))
STEPS_A_RUN = 25
DOCS = Path(__file__).parents[2] / "docs"
SPEC, HOW_TO = DOCS / "spec" / "saved-cache.md", DOCS / "howto" / "cache.md"
SEVERAL = ["kivi-4,recent=8,sinks=3", "int8-tensor", "k=kvarn-4:tile16/had,v=int4:block8x16,recent=5", "bf16"]


def loaded_from(cache: QuantizedCache, path: Path) -> QuantizedCache:
    cache.save(path)
    return QuantizedCache.load(path, small_config(), calibration=calibration_for(cache.kv_format))


def assert_equal(one: QuantizedCache, other: QuantizedCache) -> None:
    assert (one.get_seq_length(), one.batch_size) == (other.get_seq_length(), other.batch_size)
    assert one.clipped_values == other.clipped_values
    assert len(held(one)) == len(held(other))
    for ours, theirs in zip(held(one), held(other), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def assert_goes_on_equally(one: QuantizedCache, other: QuantizedCache) -> None:
    """Appends, a crop, a selection: the same bits from both."""
    rows = one.batch_size if one.batch_size > 0 else 2
    for seed, tokens in ((11, 1), (12, 40), (13, 1)):
        for ours, theirs in zip(append(one, tokens, seed, rows), append(other, tokens, seed, rows), strict=True):
            assert torch.equal(ours, theirs)
    for cache in (one, other):
        cache.crop(-1)
        cache.reorder_cache(torch.arange(rows - 1, -1, -1))
        append(cache, 2, 14)
    assert_equal(one, other)


@pytest.mark.parametrize("text", FORMATS)
def test_b56_every_format_comes_back_bit_for_bit_and_goes_on_as_before(text, tmp_path) -> None:
    cache = new_cache(text, [0, 5])
    append(cache, 34, 1, rows=2)
    cache.crop(-3)
    append(cache, 6, 2)
    cache.batch_select_indices(torch.tensor([1, 0, 1]))
    loaded = loaded_from(cache, tmp_path / "cache")
    assert loaded.get_seq_length() == 37
    assert loaded.left_padding == cache.left_padding
    assert_equal(cache, loaded)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "cache").read_bytes()
    assert_goes_on_equally(cache, loaded)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("text", SEVERAL)
def test_every_state_comes_back_bit_for_bit_and_goes_on_as_before(text, state, tmp_path) -> None:
    cache = STATES[state](text)
    loaded = loaded_from(cache, tmp_path / "cache")
    assert_equal(cache, loaded)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "cache").read_bytes()
    assert_goes_on_equally(cache, loaded)


class SavedCacheMachine(CacheMachine):
    """Every operation of the stateful test, with caches that now and then come from a file."""

    @rule(which=st.integers(0, 2))
    def save_and_load(self, which) -> None:
        cache, lists = self.pairs[which % len(self.pairs)]
        with tempfile.TemporaryDirectory() as folder:
            path, again = Path(folder, "cache"), Path(folder, "again")
            cache.save(path)
            loaded = QuantizedCache.load(path, small_config())
            loaded.save(again)
            assert path.read_bytes() == again.read_bytes()
        assert loaded.clipped_values == cache.clipped_values
        self.pairs[which % len(self.pairs)] = (loaded, lists)
        lists.shows_past = lists.recording  # what is held is shown: no file says whether a crop came last


SavedCacheMachine.TestCase.settings = settings(
    max_examples=max(1, STEPS // STEPS_A_RUN),
    stateful_step_count=STEPS_A_RUN,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSavedCacheMachine = SavedCacheMachine.TestCase


def pages(cache: QuantizedCache) -> list[int]:
    """Allocated and not free, by pool."""
    pools = {id(pool): pool for layer in cache.quantized_layers for store in layer.stores for pool in store.pools}
    return [pool.num_pages - pool.num_free for pool in pools.values()]


def test_rows_that_share_pages_are_saved_once_and_loaded_shared(tmp_path) -> None:
    cache = prompt("kivi-4,sinks=3")
    cache.save(tmp_path / "two rows")
    cache.batch_repeat_interleave(50)
    loaded = loaded_from(cache, tmp_path / "a hundred")
    sizes = [(tmp_path / name).stat().st_size for name in ("two rows", "a hundred")]
    assert sizes[1] < 1.2 * sizes[0]
    assert pages(loaded) == pages(cache)
    append(loaded, 1, 5)
    append(cache, 1, 5)
    assert pages(loaded) == pages(cache)
    assert_equal(cache, loaded)


def test_a_page_that_rows_of_different_length_share_is_stored_once_with_the_longer_one_s_tokens(tmp_path) -> None:
    cache = shared("int8-token-head")
    assert_equal(cache, loaded_from(cache, tmp_path / "cache"))
    assert pages(loaded_from(cache, tmp_path / "cache")) == pages(cache)


def test_equal_caches_give_equal_files_whatever_memory_held_before(tmp_path, monkeypatch) -> None:
    """B27: places that no token was written to are zero in the file, also where an allocation was not."""
    reference = slid("k=kvarn-4:tile16/had,v=int4:block8x16,recent=5")
    reference.save(tmp_path / "reference")
    reference.fork().save(tmp_path / "fork")
    monkeypatch.setattr(PagePool, "allocate", _dirty_pages)
    dirty = slid("k=kvarn-4:tile16/had,v=int4:block8x16,recent=5")
    monkeypatch.undo()
    dirty.save(tmp_path / "dirty")
    assert (tmp_path / "fork").read_bytes() == (tmp_path / "reference").read_bytes()
    assert (tmp_path / "dirty").read_bytes() == (tmp_path / "reference").read_bytes()


def _dirty_pages(self, count):
    """`PagePool.allocate` without its zeros."""
    self.reserve(count)
    pages = self._free_ids()[:count].astype(np.int32)
    self._references[pages] = 1
    self._put(pages, torch.full((count, self.layout.nbytes), 0xAB, dtype=torch.uint8))
    return pages


def test_a_crop_leaves_nothing_of_what_it_removed_in_the_file(tmp_path) -> None:
    """Plain floats, where removed tokens would be found as they are."""
    cache = new_cache("f32")
    append(cache, 20, 1, rows=1)
    cache.save(tmp_path / "before")
    marked = torch.full((1, 2, 5, 64), 12345.678)
    for layer in range(2):
        cache.update(marked, marked, layer)
    needle = marked[0, 0, 0, :4].numpy().tobytes()
    cache.save(tmp_path / "with")
    cache.crop(-5)
    cache.save(tmp_path / "after")
    assert needle in (tmp_path / "with").read_bytes()
    assert needle not in (tmp_path / "after").read_bytes()
    before, after = (take_apart(tmp_path / name).arrays for name in ("before", "after"))
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)


def test_b61_a_loaded_cache_holds_its_pages_alone_and_after_one_append_what_was_predicted(tmp_path) -> None:
    cache = slid("kivi-4,recent=8")
    loaded = loaded_from(cache, tmp_path / "cache")
    assert sum(pages(loaded)) == sum(pool.num_pages for pool in _pools(loaded))
    append(cache, 1, 9)
    append(loaded, 1, 9)
    ours, theirs = cache.ledger(), loaded.ledger()
    assert ours == theirs


def _pools(cache: QuantizedCache) -> list[PagePool]:
    return [pool for layer in cache.quantized_layers for store in layer.stores for pool in store.pools]


def test_what_saturates_is_treated_and_counted_as_before(tmp_path) -> None:
    cache = new_cache("fp8-e4m3")
    huge = torch.full((1, 2, 3, 64), 1000.0)
    for layer in range(2):
        cache.update(huge, huge, layer)
    loaded = loaded_from(cache, tmp_path / "cache")
    assert loaded.clipped_values == cache.clipped_values == 4 * huge.numel()
    loaded.update(huge, huge, 0)
    strict = QuantizedCache.load(tmp_path / "cache", small_config(), on_clip="raise")
    with pytest.raises(RangeError, match="saturate"):
        strict.update(huge, huge, 0)


def test_a_file_is_safetensors_and_holds_bytes_and_tables_only(tmp_path) -> None:
    """No pickle: the other package reads it, and every array is of pages or of page numbers."""
    prompt("kivi-4,sinks=3").save(tmp_path / "cache")
    with safe_open(tmp_path / "cache", framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  (no mapping)
        assert kinds == {"U8", "I32"}
        assert all(name.endswith((".table", ".pages")) for name in file.keys())  # noqa: SIM118


def test_b51_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"old")

    def full_disk(descriptor) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("kvassay.formats.container.os.fsync", full_disk)
    with pytest.raises(SavedCacheError, match=r"cache: cannot be written: No space left on device"):
        prompt("q8_0").save(path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_a_file_that_is_not_there_or_no_cache_is_an_error_that_names_it(tmp_path) -> None:
    with pytest.raises(SavedCacheError, match=r"none: cannot be read: .*No such file"):
        QuantizedCache.load(tmp_path / "none", small_config())
    with pytest.raises(SavedCacheError, match=r"nowhere.cache: cannot be written"):
        prompt("q8_0").save(tmp_path / "nowhere" / "cache")
    torch.save({"keys": torch.zeros(3)}, tmp_path / "pickled")
    with pytest.raises(SavedCacheError, match=r"pickled: (truncated|a header of)"):
        QuantizedCache.load(tmp_path / "pickled", small_config())


CHILD = """
import sys
import torch
from kvassay.cache import QuantizedCache
from kvassay.cache.quantized_layer import QuantizedLayer
from tests.cache.test_saved_cache import model_named, steps
names, folder = sys.argv[1].split("+"), sys.argv[2]
appended = []
update = QuantizedLayer.update
def counted(layer, keys, *rest, **more):
    appended.append(keys.shape[2])
    return update(layer, keys, *rest, **more)
QuantizedLayer.update = counted
torch.set_num_threads(1)
for name in names:
    model = model_named(name)
    cache = QuantizedCache.load(f"{folder}/{name}", model)
    assert not appended and cache.get_seq_length() > 0
    logits = steps(model, cache)
    assert appended == [1] * model.config.num_hidden_layers * len(logits), appended
    appended.clear()
    torch.save(logits, f"{folder}/{name}.logits")
"""


def model_named(name: str):
    return tiny_model(name.split("_")[0])


def steps(model, cache) -> torch.Tensor:
    """Next-token logits of four decode steps, `[4, batch, vocabulary]`."""
    logits = []
    token = torch.full((2, 1), 5)
    with torch.no_grad():
        for _ in range(4):
            logits.append(model(input_ids=token, cache=cache).logits[:, -1])
            token = logits[-1].argmax(-1, keepdim=True)
    return torch.stack(logits)


def test_b56_b59_turn_two_in_a_new_process_has_the_same_logits_bit_for_bit(tmp_path) -> None:
    """Full and sliding layers, a key bias from the weights, a format with blocks and one without."""
    torch.set_num_threads(1)
    cases = {
        "llama_kivi": "kivi-4,recent=8,sinks=2",
        "gemma3_int8": "int8-token-head",
        "gemma3_kivi": "kivi-2,recent=4",
        "qwen2_bias": "int4-g32,keybias=removed",
    }
    expected = {}
    for name, text in cases.items():
        model = model_named(name)
        cache = QuantizedCache.for_model(model, text, on_clip="count")
        tokens = torch.randint(3, VOCABULARY, (2, 61), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            model(input_ids=tokens, cache=cache)
        cache.save(tmp_path / name)
        same_process = steps(model, QuantizedCache.load(tmp_path / name, model))
        expected[name] = steps(model, cache)
        assert torch.equal(same_process, expected[name])
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", CHILD, "+".join(cases), str(tmp_path)],
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        timeout=300,
    )
    for name in cases:
        assert torch.equal(torch.load(tmp_path / f"{name}.logits", weights_only=True), expected[name]), name


def test_the_schema_is_that_of_the_header() -> None:
    assert SCHEMA.read_text() == schema_text()


def test_the_document_names_every_field_of_the_header() -> None:
    text = SPEC.read_text()
    for model in (SavedHeader, SavedLayer, SavedPool, SavedCohort, SavedStore, SavedRun):
        for name, field in model.model_fields.items():
            assert f"`{field.alias or name}`" in text, f"{model.__name__}.{name}"
    assert f"{TAIL_PAGE_TOKENS} tokens" in text


def test_the_how_to_s_code_runs(tmp_path, monkeypatch, capsys) -> None:
    section = HOW_TO.read_text().split("## Save and load")[1].split("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)), {})
    assert "turn-one.kvcache: the file holds kivi-4,recent=32 (digest" in capsys.readouterr().out
