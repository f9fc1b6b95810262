"""The store: whole files, whole folders, and the first of two that finish."""

from __future__ import annotations

import errno
import os
import resource
import signal

import pytest

from kvassay.errors import StoreError
from kvassay.scale.store import MANIFEST, Store


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}/store")


def commit(store: Store, results: dict[str, bytes], others: dict[str, bytes] | None = None, name: str = "x") -> bool:
    return store.commit(f"cells/{name}", "kvassay.cell/1", name, results, others or {}, {"seconds": 1.0})


def test_a_folder_is_done_when_its_manifest_is_there(store) -> None:
    assert store.folder("cells/x", "x") is None
    store.put("cells/x/record-0123.json", b"{}")
    assert store.folder("cells/x", "x") is None
    assert commit(store, {"record.json": b"{}", "tokens.parquet": b"rows"})
    found = store.folder("cells/x", "x")
    assert found is not None
    assert store.file("cells/x", found, "tokens.parquet") == b"rows"


def test_of_two_that_finish_the_first_stays_and_neither_breaks(store) -> None:
    assert commit(store, {"record.json": b"{}"}, {"run.json": b"first"})
    assert not commit(store, {"record.json": b"{}"}, {"run.json": b"second"})
    found = store.folder("cells/x", "x")
    assert found is not None
    assert store.file("cells/x", found, "run.json") == b"first"


def test_the_result_digest_is_of_what_every_run_gives(store) -> None:
    commit(store, {"record.json": b"{}"}, {"run.json": b"a"}, "x")
    commit(store, {"record.json": b"{}"}, {"run.json": b"b"}, "y")
    commit(store, {"record.json": b"[]"}, {"run.json": b"a"}, "z")
    x, y, z = (store.folder(f"cells/{name}", name) for name in "xyz")
    assert x is not None
    assert y is not None
    assert z is not None
    assert x.result_sha256 == y.result_sha256 != z.result_sha256


def test_a_damaged_file_is_named_and_a_damaged_manifest_is_no_manifest(store) -> None:
    commit(store, {"record.json": b"{}"})
    found = store.folder("cells/x", "x")
    assert found is not None
    store.put(f"cells/x/{found.files['record.json'].name}", b"{ }")
    with pytest.raises(StoreError, match="is not what was written"):
        store.file("cells/x", found, "record.json")
    store.remove(f"cells/x/{found.files['record.json'].name}")
    with pytest.raises(StoreError, match="is missing"):
        store.file("cells/x", found, "record.json")
    store.put(f"cells/x/{MANIFEST}", b'{"id": "x"')
    assert store.folder("cells/x", "x") is None
    assert commit(store, {"record.json": b"{}"}), "the work that was done again takes its place"
    assert store.folder("cells/x", "x") == found


@pytest.mark.parametrize("manifest", [b'{"id": "x"', b'{"id": "x", "added_by_a_later_version": 1}', b""])
def test_asking_for_a_folder_changes_nothing_in_the_store(store, manifest) -> None:
    store.put(f"cells/x/{MANIFEST}", manifest)
    assert store.folder("cells/x", "x") is None
    assert store.read(f"cells/x/{MANIFEST}") == manifest


def test_put_new_writes_once(store) -> None:
    assert store.put_new("plans/a.json", b"1")
    assert not store.put_new("plans/a.json", b"2")
    assert store.read("plans/a.json") == b"1"


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        Store("nonsense://bucket/store")


def test_what_a_killed_process_was_writing_is_swept_and_nothing_else(tmp_path) -> None:
    store = Store(str(tmp_path / "store"))
    store.put("cells/x/record-1.json", b"{}")
    child = os.fork()
    if child == 0:
        store._write_partial(store.address("cells/x/run-1.json"), b"{")
        os._exit(0)
    os.waitpid(child, 0)
    mine = store._write_partial(store.address("cells/x/log-1.txt"), b"")
    elsewhere = tmp_path / "store" / "cells" / "x" / ".log-2.txt.partial-0123456789ab-1-5.abc"
    elsewhere.write_bytes(b"")
    assert store.sweep() == 1
    left = {path.name for path in (tmp_path / "store" / "cells" / "x").iterdir()}
    assert left == {"record-1.json", os.path.basename(mine), elsewhere.name}


def test_a_full_disk_leaves_nothing_half_written(tmp_path) -> None:
    """A process may write no file above 4 KiB, which fails as a full disk does, in the middle of a write."""
    store = Store(str(tmp_path / "store"))
    store.put("units/small", b"x")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            store.put("units/large", b"x" * 100_000)
        except StoreError as error:
            os._exit(0 if "free some room and run again" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(os.listdir(tmp_path / "store" / "units")) == ["small"]


def test_a_store_that_is_a_file_or_has_no_name_is_refused_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix.toml").write_text("")
    with pytest.raises(StoreError, match="is a file; expected a folder"):
        Store("matrix.toml")
    for name in ("", " "):
        with pytest.raises(StoreError, match="has no name; expected a folder, or a URL"):
            Store(name)


class _NoCredentialsError(Exception):
    """As a service's own errors are: of no kind that Python or fsspec knows."""


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (_NoCredentialsError("Unable to locate credentials"), "check address, access and network"),
        (PermissionError(13, "Permission denied"), "check address, access and network"),
        (OSError(28, "No space left on device"), "free some room and run again"),
    ],
)
def test_an_error_of_the_service_is_one_of_the_store_and_of_no_cell(error, way_out, tmp_path, monkeypatch) -> None:
    """A cell's own errors are tried again and quarantine it; with the store everything ends."""
    store = Store(f"memory://{tmp_path}/store")

    def fails(*_arguments, **_options):
        raise error

    for name in ("cat_file", "exists", "ls", "pipe_file", "rm"):
        monkeypatch.setattr(store.file_system, name, fails)
    calls = {
        "read": lambda: store.read("a"),
        "listed": lambda: store.names("a"),
        "written": lambda: store.put("a", b""),
        "removed": lambda: store.remove("a"),
    }
    more = (("read", lambda: store.exists("a")), ("written", lambda: store.put_new("a", b"")))
    for done, call in (*calls.items(), *more):
        with pytest.raises(StoreError, match=f"memory://.*/store/a cannot be {done}: .*; {way_out}"):
            call()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_store() -> None:
    with pytest.raises(StoreError, match=r"/proc/store/a\.json cannot be written: .*; check who may"):
        Store("/proc/store").put("a.json", b"")


def test_a_folder_that_others_write_into_or_remove_as_well_is_removed_all_the_same(tmp_path, monkeypatch) -> None:
    store = Store(str(tmp_path / "store"))
    for name in ("a", "b"):
        store.put(f"cells/x/parts/{name}/run.json", b"{}")
    whole = store._fs.rm
    fails = [OSError(errno.ENOTEMPTY, "Directory not empty"), FileNotFoundError(errno.ENOENT, "gone")]

    def contended(path: str, recursive: bool) -> None:
        if fails:
            raise fails.pop(0)
        whole(path, recursive=recursive)

    monkeypatch.setattr(store._fs, "rm", contended)
    store.remove("cells/x/parts")
    assert not fails
    assert not store.exists("cells/x/parts")


def test_parts_that_came_after_the_whole_are_swept(tmp_path) -> None:
    store = Store(str(tmp_path / "store"))
    for whole in ("done", "open", "odd"):
        store.put(f"cells/{whole}/parts/1-of-2/run.json", b"{}")
    assert store.commit("cells/done", "kvassay.cell/1", "done", {"rows.json": b"[]"}, {}, {})
    store.put("cells/odd/manifest.json", b"{}")  # of no version that is known: nothing says that its parts are needless
    store.sweep()
    assert not store.exists("cells/done/parts")
    assert store.exists("cells/open/parts/1-of-2/run.json")
    assert store.exists("cells/odd/parts/1-of-2/run.json")
