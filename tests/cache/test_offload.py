"""Offload: the same bits as without it, within the limit, every byte counted, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import resource
import tempfile
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from benchmarks import cache_offload
from kvassay.cache import Offload, QuantizedCache
from kvassay.cache.offload import smallest_resident_nbytes
from kvassay.cache.page_backing import FileBacking, FreeRanges, HostBacking
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import geometry_from_config
from kvassay.errors import CacheStateError
from tests import tiny_models
from tests.cache.test_operations import DIM, HEADS, STEPS, STEPS_A_RUN, CacheMachine, small_config
from tests.thorough import pairs

GARBAGE = 0xA5


class GarblingFile(FileBacking):
    """Overwrites what it has taken, as whoever uses that memory next would."""

    def write(self, begin, pages) -> None:
        super().write(begin, pages)
        pages.fill_(GARBAGE)


class GarblingHost(HostBacking):
    def write(self, begin, pages) -> None:
        super().write(begin, pages)
        pages.fill_(GARBAGE)


def limit(config, name: str, share: float = 1.0) -> int:
    kv_format = parse_format(name) if isinstance(name, str) else name
    return int(smallest_resident_nbytes(geometry_from_config(config.to_dict()), kv_format) * share)


def garbling(nbytes: int, folder=None, **options) -> Offload:
    """An offload on disk whose evicted buffers become garbage."""
    folder = folder or tempfile.gettempdir()
    offload = Offload(nbytes, folder, **options)
    offload._residency.backing = GarblingFile(folder)
    return offload


def host_offload(nbytes: int) -> Offload:
    """Host memory, without the refusal for caches that lie there themselves."""
    offload = Offload(nbytes)
    offload._residency = offload._make_residency(GarblingHost(torch.device("cpu")))
    return offload


def read_thread_count() -> int:
    return sum(thread.name.startswith("kvassay-read-ahead") for thread in threading.enumerate())


class OffloadedCacheMachine(CacheMachine):
    """B54: every operation with a limit of a page or a few, and garbage in memory that pages have left."""

    def make_cache(self, config, kv_format, **options) -> QuantizedCache:
        # Which limit and which place follow from the format, so that the machine draws nothing more.
        pick = int(kv_format.digest[-4:], 16)
        nbytes = limit(config, kv_format, (1, 1.5, 3, 8)[pick % 4])
        make = (garbling, host_offload, lambda n: garbling(n, read_ahead=False))[pick // 4 % 3]
        self.offload = make(nbytes)
        return QuantizedCache(config, kv_format, offload=self.offload, **options)

    def nbytes_elsewhere(self, cache) -> int:
        return self.offload.counts().offloaded_nbytes

    @invariant()
    def memory_is_within_the_limit(self) -> None:
        if offload := getattr(self, "offload", None):
            counts = offload.counts()
            assert counts.resident_nbytes <= counts.peak_resident_nbytes <= counts.limit_nbytes


OffloadedCacheMachine.TestCase.settings = settings(
    max_examples=max(1, STEPS // STEPS_A_RUN),
    stateful_step_count=STEPS_A_RUN,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestOffloadedCacheMachine = OffloadedCacheMachine.TestCase


def test_views_that_are_held_in_two_layers_are_both_those_of_the_state_before() -> None:
    """Decoding one reads ahead in the other layer, which must not write what it has appended before it is decoded."""
    state = OffloadedCacheMachine()
    state.begin(name="int8-token", sinks=0, recent=1, padding=[0], recording=False, views=True)
    state.append(holds=False, tokens=1, which=0)
    state.append(holds=True, tokens=2, which=0)
    state.let_go()


def values(tokens: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def filled(
    offload: Offload | None, tokens: int = 400, layers: int = 4, name: str = "kivi-4,recent=8"
) -> QuantizedCache:
    cache = QuantizedCache(tiny_models.tiny_config("llama", num_hidden_layers=layers), name, offload=offload)
    for layer in range(layers):
        cache.update(values(tokens, seed=layer), values(tokens, seed=99 - layer), layer)
    return cache


def held(cache: QuantizedCache) -> list[torch.Tensor]:
    return [side for layer in cache.layers for side in (layer.keys, layer.values)]


def all_equal(one: QuantizedCache, other: QuantizedCache) -> bool:
    return all(torch.equal(a, b) for a, b in zip(held(one), held(other), strict=True))


@pytest.mark.parametrize(
    ("model_beams", "name"),
    pairs(
        [(name, beams) for name in tiny_models.NAMES for beams in (1, 3)],
        ["kivi-4,recent=8", "int8-token-head,sinks=2", "q4_0", "f16"],
    ),
)
def test_generation_is_bit_equal_with_and_without(model_beams, name, tmp_path) -> None:
    """Logits of every step, over prefill, decoding and beam reordering, sliding layers included."""
    model_name, beams = model_beams
    model = tiny_models.tiny_model(model_name).float()
    prompt = torch.arange(3, 93)[None].repeat(2, 1)
    options = {"max_new_tokens": 50, "do_sample": False, "eos_token_id": None, "num_beams": beams}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    # Kernels do not read pages that come and go, so both runs read them by tiles.
    path = "auto" if model.config._attn_implementation == "eager" else "tiled"
    plain = model.generate(prompt, cache=QuantizedCache(model.config, name, attention=path), **options)
    offload = garbling(limit(model.config, name, 1.5), tmp_path)
    found = model.generate(prompt, cache=QuantizedCache(model.config, name, offload=offload), **options)
    assert torch.equal(plain.sequences, found.sequences)
    assert all(torch.equal(one, other) for one, other in zip(plain.logits, found.logits, strict=True))
    counts = offload.counts()
    assert min(counts.nbytes_out, counts.nbytes_in) > 0
    assert counts.peak_resident_nbytes <= counts.limit_nbytes


def test_b54_raw_pages_come_back_as_they_were(tmp_path) -> None:
    """Codes, scales and minimums of every page by their bytes, and put_raw into pages that lie on disk."""
    plain = filled(None)
    cache = filled(garbling(limit(small_config(), "kivi-4", 2), tmp_path))
    pairs = list(zip(plain.layers, cache.layers, strict=True))
    for mine, theirs in pairs:
        for one, other in zip(mine.stores, theirs.stores, strict=True):
            for run, its in zip(one.coded_pages, other.coded_pages, strict=True):
                assert torch.equal(run.raw(), its.raw())
                pages = its.table.ravel()[::-1].copy()
                its.pool.put_raw(pages, its.pool.raw(pages) ^ 0x5A)
                assert torch.equal(run.raw() ^ 0x5A, its.raw())


def test_r40_bytes_and_seconds_are_counted_both_ways(tmp_path) -> None:
    """One step moves in what is away and no more; the prompt moves out what does not fit, once."""
    offload = Offload(80_000, tmp_path, read_ahead=False)
    cache = filled(offload, tokens=1500)
    away = sum(offload._residency.away.values())
    first = offload.counts()
    assert first.nbytes_out == away > 0
    assert first.nbytes_in == 0
    assert first.seconds_out > 0
    assert all_equal(cache, filled(None, tokens=1500))
    counts = cache.offload_counts()
    used = sum(
        int(offload_pages) * run.pool.layout.nbytes
        for layer in cache.layers
        for store in layer.stores
        for run in store.coded_pages
        for offload_pages in [run.table.size]
    )
    assert counts.nbytes_in == counts.read_ahead_misses * store_page_nbytes(cache) <= away
    assert used - counts.limit_nbytes <= counts.nbytes_in
    assert counts.seconds_waited > 0
    assert counts.seconds_in > 0
    assert counts.resident_nbytes + counts.offloaded_nbytes >= used


def store_page_nbytes(cache: QuantizedCache) -> int:
    sizes = {store.coded_layout.nbytes for layer in cache.layers for store in layer.stores}
    assert len(sizes) == 1
    return sizes.pop()


def test_reading_ahead_serves_nearly_every_page_and_layers_stream_alike(tmp_path) -> None:
    offload = Offload(800_000, tmp_path)
    cache = filled(offload, tokens=1500, layers=12)
    away = offload._residency.away
    assert min(away[layer] for layer in range(12)) > 0
    assert max(away.values()) - min(away.values()) <= 2 * store_page_nbytes(cache)
    held(cache)
    before = offload.counts()
    for _ in range(3):
        held(cache)
    counts = offload.counts()
    hits = counts.read_ahead_hits - before.read_ahead_hits
    assert hits > 0.9 * (hits + counts.read_ahead_misses - before.read_ahead_misses)
    assert counts.peak_resident_nbytes <= counts.limit_nbytes


def test_pages_come_back_to_memory_where_room_is(tmp_path) -> None:
    offload = Offload(200_000, tmp_path)
    cache = filled(offload, tokens=1500)
    cache.crop(-1400)
    held(cache)
    before = offload.counts().nbytes_in
    held(cache)
    assert offload.counts().nbytes_in == before


def test_a_full_disk_leaves_the_cache_as_it_was(tmp_path) -> None:
    """A real limit of the file's size; afterwards room is made and the same append goes through."""
    offload = garbling(limit(small_config(), "kivi-4", 2), tmp_path)
    cache, plain = filled(offload), filled(None)
    size = os.fstat(offload._residency.backing.fileno()).st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(CacheStateError, match=r"keys of layer 0: .* has no room for [\d,]+ more bytes"):
            cache.update(values(500), values(500), 0)
        assert cache.get_seq_length() == 400
        assert all_equal(cache, plain)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for one in (cache, plain):
        for layer in range(4):
            one.update(values(500, seed=layer), values(500), layer)
    assert all_equal(cache, plain)


def test_a_disk_that_takes_nothing_keeps_pages_in_memory_and_the_next_append_says_so(tmp_path, monkeypatch) -> None:
    offload = Offload(limit(small_config(), "kivi-4", 2), tmp_path)

    def refuse(begin, pages) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(offload._residency.backing, "write", refuse)
    cache = QuantizedCache(small_config(), "kivi-4,recent=8", offload=offload)
    plain = QuantizedCache(small_config(), "kivi-4,recent=8")
    for one in (cache, plain):
        one.update(values(300), values(300), 0)
    assert torch.equal(cache.layers[0].keys, plain.layers[0].keys)
    with pytest.raises(CacheStateError, match=r"cannot be moved to .*Input/output error.*bytes are in memory"):
        cache.update(values(300), values(300), 1)
    assert cache.get_seq_length(1) == 0
    monkeypatch.undo()
    for one in (cache, plain):
        one.update(values(300), values(300), 1)
    assert all_equal(cache, plain)
    assert offload.counts().resident_nbytes <= offload.resident_nbytes


def test_an_error_of_the_second_thread_reaches_the_caller_once(tmp_path, monkeypatch) -> None:
    offload = Offload(limit(small_config(), "kivi-4", 8), tmp_path)
    cache = filled(offload, tokens=1500)
    read = offload._residency.backing.read

    def fail_beside(begin, pages) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.EIO, "Input/output error")
        read(begin, pages)

    monkeypatch.setattr(offload._residency.backing, "read", fail_beside)
    with pytest.raises(CacheStateError, match=r"cannot be read back from .*Input/output error"):
        held(cache)
    monkeypatch.undo()
    assert all_equal(cache, filled(None, tokens=1500))


def test_no_thread_and_no_file_are_left(tmp_path) -> None:
    """Also after an exception, while the Offload itself is still held."""
    offload = Offload(200_000, tmp_path)
    cache = filled(offload, tokens=1500)
    held(cache)
    assert read_thread_count() >= 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError):
        cache.update(values(1), values(1), 1 // 0)
    del cache
    gc.collect()
    end = time.monotonic() + 10
    while read_thread_count() and time.monotonic() < end:
        time.sleep(0.01)
    assert read_thread_count() == 0
    counts = offload.counts()
    assert (counts.resident_nbytes, counts.offloaded_nbytes) == (0, 0)
    assert os.fstat(offload._residency.backing.fileno()).st_size == 0
    assert offload._residency.away.total() == 0


def test_caches_of_one_offload_share_its_limit(tmp_path) -> None:
    offload = garbling(100_000, tmp_path)
    one, other, plain = filled(offload), filled(offload), filled(None)
    assert all_equal(one, plain)
    assert all_equal(other, plain)
    assert offload.counts().peak_resident_nbytes <= 100_000
    one.take_rows(other)
    with pytest.raises(CacheStateError, match="different offload"):
        one.take_rows(filled(garbling(100_000, tmp_path)))
    assert held(one)[0].shape[0] == 2


def test_what_cannot_be_is_refused_by_name(tmp_path) -> None:
    config = small_config()
    with pytest.raises(CacheStateError, match=r"resident_nbytes is 1,000; kivi-4.* needs [\d,]+, one page"):
        QuantizedCache(config, "kivi-4", offload=Offload(1000, tmp_path))
    with pytest.raises(CacheStateError, match=r"no file for offloaded pages can be made in .*missing"):
        Offload(100_000, tmp_path / "missing")
    cache = QuantizedCache(config, "kivi-4", offload=Offload(100_000))
    with pytest.raises(CacheStateError, match="lies in host memory, and Offload without a folder"):
        cache.update(values(70), values(70), 0)
    with pytest.raises(CacheStateError, match="counts no offload"):
        QuantizedCache(config, "kivi-4").offload_counts()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 40)), max_size=60))
def test_free_ranges_never_overlap_and_come_back(steps) -> None:
    ranges = FreeRanges()
    taken: list[tuple[int, int]] = []
    for give, which, nbytes in steps:
        if give and taken:
            ranges.give(*taken.pop(which % len(taken)))
        else:
            begin = ranges.take(nbytes)
            if begin is None:
                begin = ranges.end
                ranges.end += nbytes
            assert all(begin + nbytes <= low or low + size <= begin for low, size in taken)
            taken.append((begin, nbytes))
    for one in taken:
        ranges.give(*one)
    assert ranges.end == 0


def test_a_file_system_that_cannot_reserve_is_written_with_zeros(tmp_path, monkeypatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    backing = FileBacking(tmp_path)
    begin = backing.reserve(3_000_000)
    assert os.fstat(backing.fileno()).st_size == 3_000_000
    pages = torch.ones(3, 1_000_000, dtype=torch.uint8)
    backing.read(begin, pages)
    assert int(pages.max()) == 0


def test_the_benchmark_runs(tmp_path) -> None:
    rows = cache_offload.measure(600, 3, 1, str(tmp_path))
    assert [row["arm"] for row in rows[:2]] == ["all in memory", "25% resident, without, warm"]
    assert all(row["peak_resident_nbytes"] <= row["limit_nbytes"] for row in rows[1:])
    assert all(row["nbytes_in_a_step"] > 0 for row in rows[1:])
