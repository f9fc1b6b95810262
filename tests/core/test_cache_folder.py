"""The user's cache folder, and remembered digests that never outlive the file they belong to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kvassay.core import cache_folder as module
from kvassay.core.cache_folder import cache_folder, remembered_sha256, replace_file
from kvassay.core.digest import sha256_bytes


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVASSAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "kvassay"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "kvassay"
    monkeypatch.setenv("KVASSAY_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.fixture
def old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file whose digest may be remembered at once."""
    monkeypatch.setenv("KVASSAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    path = tmp_path / "file"
    path.write_bytes(b"first")
    return path


def test_a_digest_is_remembered_and_forgotten_with_the_content(old_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remembered_sha256(old_file) == sha256_bytes(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(module, "sha256_file", lambda path: pytest.fail("hashed again"))
        assert remembered_sha256(old_file) == sha256_bytes(b"first")
    status = old_file.stat()
    time.sleep(0.02)
    old_file.write_bytes(b"other")
    # The same size, and the old time stamp put back: the change time still tells.
    os.utime(old_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert remembered_sha256(old_file) == sha256_bytes(b"other")


def test_a_fresh_file_is_not_remembered(old_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RACY_SECONDS", 60.0)
    assert remembered_sha256(old_file) == sha256_bytes(b"first")
    assert not (cache_folder() / "digests").exists()


@pytest.mark.parametrize("note", [b"", b"[]", b"{", json.dumps({"file": {}, "sha256": "0" * 64}).encode()])
def test_a_damaged_note_is_not_believed(note: bytes, old_file: Path) -> None:
    remembered_sha256(old_file)
    (path,) = (cache_folder() / "digests").iterdir()
    path.write_bytes(note)
    assert remembered_sha256(old_file) == sha256_bytes(b"first")


def test_replacing_a_file_leaves_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "file"
    replace_file(path, b"one")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]
