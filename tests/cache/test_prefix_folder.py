"""Prefixes on disk: whole or absent, whatever dies, breaks or is removed meanwhile."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from kvassay.cache import PrefixStore, prefix_folder
from kvassay.cache.page_pool import PagePool
from kvassay.cache.prefix_file import BlockFile
from kvassay.core.prefix_blocks import block_grid, block_keys, token_array
from kvassay.errors import ForeignFormatError, PrefixStoreError
from tests.cache import prefix_crash
from tests.cache.prefix_cases import BLOCK, TOKENS, assert_prefix_of, empty_cache, filled_cache, identity_of

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.cache.prefix_crash"])


def stored(folder: Path, name: str = "int8-token-head") -> PrefixStore:
    store, cache = PrefixStore(folder=folder), filled_cache(name)
    store.put(cache, range(TOKENS), identity_of(cache))
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run(target, *arguments) -> int | None:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_kill_9_between_any_two_calls_loses_at_most_the_page_in_flight(tmp_path, after, monkeypatch) -> None:
    """Before or behind each call, and in the middle of each write: every lookup is right, or a miss."""
    whole = filled_cache()
    identity = identity_of(whole)
    monkeypatch.setattr(prefix_folder, "_ABANDONED_SECONDS", 0.0)
    found_tokens: list[int] = []
    for kill_at in range(1, 200):
        folder = tmp_path / f"{kill_at}"
        code = run(prefix_crash.put_and_die, folder, kill_at, after)
        left = names(folder) if folder.exists() else []
        found = PrefixStore(folder=folder).lookup(range(TOKENS), identity, empty_cache())
        assert not found.damaged
        files = [name for name in left if not name.startswith(".")]
        assert found.tokens == len(files) * BLOCK
        assert len(left) - len(files) <= 1
        if found.tokens:
            assert_prefix_of(found.cache, whole)
        found_tokens.append(found.tokens)
        # The next writer goes on from there, and removes what the dead one left half-written.
        store = PrefixStore(folder=folder, folder_limit_nbytes=1 << 30)
        assert store.put(whole, range(TOKENS), identity).stored_tokens == 3 * BLOCK
        assert len(names(folder)) == 3
        assert PrefixStore(folder=folder).lookup(range(TOKENS), identity, empty_cache()).tokens == 3 * BLOCK
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert found_tokens == sorted(found_tokens)
    assert set(found_tokens) == {0, BLOCK, 2 * BLOCK, 3 * BLOCK}
    assert len(found_tokens) > 20


FAILING = ["open", "write", "fsync", "rename"]


@pytest.mark.parametrize("call", FAILING)
def test_b51_a_put_that_fails_half_way_leaves_no_key_and_moves_no_counter(tmp_path, monkeypatch, call) -> None:
    cache = filled_cache()
    identity = identity_of(cache)
    failed = 0
    for at in range(1, 50):
        store = PrefixStore(folder=tmp_path / str(at))
        real, count = getattr(os, call), 0

        def failing(*args, real=real, at=at, **named):
            nonlocal count
            count += 1
            if count == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                store.put(cache, range(TOKENS), identity)
            except PrefixStoreError as error:
                message = str(error)
            else:
                break
        failed += 1
        assert "No space left on device" in message
        assert names(tmp_path / str(at)) == []
        assert store.statistics == (0, 0, 0, 0, 0, 0, 0)
        assert store.nbytes == 0
        assert store.lookup(range(TOKENS), identity, empty_cache()).matched_tokens == 0
        assert store.put(cache, range(TOKENS), identity).new_blocks == 3
        assert store.statistics[:2] == (1, 3)
    assert failed >= 3


def test_b51_a_put_that_finds_no_memory_leaves_nothing(monkeypatch) -> None:
    cache = filled_cache("kivi-4,sinks=2,recent=4")
    identity = identity_of(cache)
    real, failed = PagePool.allocate, 0
    for at in range(1, 50):
        store, count = PrefixStore(), 0

        def failing(pool, number, at=at):
            nonlocal count
            count += 1
            if count == at:
                raise MemoryError("no memory")
            return real(pool, number)

        with monkeypatch.context() as patch:
            patch.setattr(PagePool, "allocate", failing)
            try:
                store.put(cache, range(TOKENS), identity)
            except MemoryError:
                failed += 1
            else:
                break
        assert store.nbytes == 0
        assert store.statistics.puts == 0
        assert store.lookup(range(TOKENS), identity, empty_cache("kivi-4,sinks=2,recent=4")).matched_tokens == 0
        store.clear()
        assert not list(store.storages())
    assert failed >= 18


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_a_miss_that_is_reported_and_removed(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    whole = filled_cache()
    identity = identity_of(whole)
    stored(folder)
    tokens, grid = token_array(range(TOKENS)), block_grid(whole.kv_format, whole.geometry)
    block = data.draw(st.integers(0, 2), "block")
    path = folder / f"{list(block_keys(identity.digest, tokens, grid))[block]}.full.safetensors"
    content = path.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "empty", "zeros", "link", "folder"]), "damage")
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 900), "place")
    place = min(place, len(content) - 1)
    path.unlink()
    match kind:
        case "flip":
            flipped = content[place] ^ data.draw(st.integers(1, 255), "bits")
            path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        case "cut":
            path.write_bytes(content[:place])
        case "longer":
            path.write_bytes(content + b"\0")
        case "empty":
            path.write_bytes(b"")
        case "zeros":
            path.write_bytes(bytes(len(content)))
        case "link":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    store = PrefixStore(folder=folder)
    found = store.lookup(range(TOKENS), identity, empty_cache())
    assert found.tokens == block * BLOCK
    assert len(found.damaged) == store.statistics.damaged_files == 1
    assert path.name in found.damaged[0]
    if block and found.tokens:
        assert_prefix_of(found.cache, whole)
    if kind == "folder":
        path.rmdir()
    assert not os.path.lexists(path)
    if data.draw(st.booleans(), "put again"):
        assert store.put(whole, range(TOKENS), identity).new_blocks >= 1
        assert PrefixStore(folder=folder).lookup(range(TOKENS), identity, empty_cache()).tokens == 3 * BLOCK


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "other"), ("revision", "r2"), ("tokenizer", "t2"), ("salt", "user 2"), ("compute_dtype", "float16")],
)
def test_r8_a_file_under_another_identity_is_refused_by_name(tmp_path, field, value) -> None:
    """A file that was given another key's name is not read for what it is called."""
    cache = filled_cache()
    mine, other = identity_of(cache), identity_of(cache, **{field: value})
    stored(tmp_path)
    tokens, grid = token_array(range(TOKENS)), block_grid(cache.kv_format, cache.geometry)
    one, two = (next(block_keys(identity.digest, tokens, grid)) for identity in (mine, other))
    os.rename(tmp_path / f"{one}.full.safetensors", tmp_path / f"{two}.full.safetensors")
    content = (tmp_path / f"{two}.full.safetensors").read_bytes()
    with pytest.raises(ForeignFormatError, match=f"was made for {field} "):
        BlockFile(other, two, "full", 0, grid.arrays("full", 0)).decoded(content)
    found = PrefixStore(folder=tmp_path).lookup(range(TOKENS), other, empty_cache())
    assert found.tokens == 0
    assert f"was made for {field} " in found.damaged[0]


def test_a_file_is_safetensors_and_hides_salt_and_tokens(tmp_path) -> None:
    cache, store = filled_cache("kivi-4,sinks=2,recent=4"), PrefixStore(folder=tmp_path)
    identity = identity_of(cache, salt="a secret of the user")
    ids = [40_000 + token for token in range(TOKENS)]
    store.put(cache, ids, identity)
    assert len(names(tmp_path)) == 3
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        assert b"a secret" not in path.read_bytes()
        with safe_open(path, "pt") as file:
            told = json.loads(file.metadata()["kvassay.prefix"])
            assert told["identity"] == identity.digest
            assert path.name == f"{told['key']}.{told['part']}.safetensors"
            sinks = [name for name in file.keys() if name.endswith(".sinks")]  # noqa: SIM118
            assert bool(sinks) == (told["block"] == 0)
            for name in file.keys():  # noqa: SIM118
                assert file.get_tensor(name).dtype == torch.uint8


def test_the_longest_unused_files_go_first_and_the_limit_holds(tmp_path) -> None:
    cache = filled_cache()
    identity = identity_of(cache)
    probe = PrefixStore(folder=tmp_path / "probe")
    probe.put(cache, range(TOKENS), identity)
    one = sum(path.stat().st_size for path in (tmp_path / "probe").iterdir())
    limit = one * 5 // 2
    store = PrefixStore(folder=tmp_path / "f", folder_limit_nbytes=limit)
    texts = [[text, *range(1, TOKENS)] for text in range(3)]

    def found(text: int) -> int:
        return PrefixStore(folder=tmp_path / "f").lookup(texts[text], identity, empty_cache()).tokens

    store.put(cache, texts[0], identity)
    store.put(cache, texts[1], identity)
    assert found(0) == 3 * BLOCK  # a use, by another process: text 1 is now the longest unused
    store.put(cache, texts[2], identity)
    assert sum(path.stat().st_size for path in (tmp_path / "f").iterdir()) <= limit
    # The deepest blocks go first, so what is left of a text is its begin.
    assert [found(text) // BLOCK for text in range(3)] == [3, 1, 3]
    small = PrefixStore(folder=tmp_path / "small", folder_limit_nbytes=one // 2)
    put = small.put(cache, texts[0], identity)
    assert "folder_limit_nbytes" in str(put.left_out)
    assert len(names(tmp_path / "small")) == 1


def test_a_file_that_goes_between_listing_and_opening_is_a_miss(tmp_path, monkeypatch) -> None:
    stored(tmp_path)
    whole = filled_cache()
    identity = identity_of(whole)
    for gone in (3, 2, 1):
        store = PrefixStore(folder=tmp_path)
        real, count = os.open, 0

        def racing(path, *args, real=real, gone=gone, **named):
            nonlocal count
            count += str(path).endswith(".safetensors")
            if count == gone and str(path).endswith(".safetensors"):
                os.unlink(path)
            return real(path, *args, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", racing)
            found = store.lookup(range(TOKENS), identity, empty_cache())
        assert (found.tokens, found.damaged) == ((gone - 1) * BLOCK, ())
        assert len(names(tmp_path)) == gone - 1


@pytest.mark.slow
def test_two_processes_write_read_and_make_room_in_one_folder(tmp_path) -> None:
    processes = [CONTEXT.Process(target=prefix_crash.put_many, args=(tmp_path, first, 30)) for first in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0]
    assert all(not name.startswith(".") for name in names(tmp_path))
    for seed in range(3):
        whole = filled_cache(seed=seed)
        found = PrefixStore(folder=tmp_path).lookup([seed, *range(1, TOKENS)], identity_of(whole), empty_cache())
        assert not found.damaged
        if found.tokens:
            assert_prefix_of(found.cache, whole)


def test_only_files_of_its_own_are_ever_removed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(prefix_folder, "_ABANDONED_SECONDS", 0.0)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("a" * 64 + ".full.safetensors.bak")).write_text("mine")
    key = "b" * 64
    (tmp_path / f".{key}.full.safetensors.{'0' * 16}.partial").write_text("a dead writer's")
    cache, store = filled_cache(), PrefixStore(folder=tmp_path, folder_limit_nbytes=1)
    time.sleep(0.01)
    store.put(cache, range(TOKENS), identity_of(cache))
    assert names(tmp_path) == ["a" * 64 + ".full.safetensors.bak", "notes.txt"]


def test_a_rest_whose_writer_lives_stays(tmp_path, monkeypatch) -> None:
    import fcntl

    monkeypatch.setattr(prefix_folder, "_ABANDONED_SECONDS", 0.0)
    rest = tmp_path / f".{'c' * 64}.full.safetensors.{'0' * 16}.partial"
    with rest.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        prefix_folder.PrefixFolder(tmp_path).remove_abandoned()
        assert rest.exists()
    prefix_folder.PrefixFolder(tmp_path).remove_abandoned()
    assert not rest.exists()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PrefixStoreError, match="cannot be a folder of prefixes"):
        PrefixStore(folder=tmp_path / "file" / "inside")
