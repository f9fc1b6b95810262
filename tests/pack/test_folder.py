"""Result folders are fresh, whole or absent (R107)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvassay.errors import PackError
from kvassay.pack.files import read_manifest, read_schema, verify_files
from kvassay.pack.folder import EXPERIMENT_SCHEMA, FolderWriter
from kvassay.pack.manifest import check_file_name


def write(out: Path, **files: str):
    with FolderWriter(out, EXPERIMENT_SCHEMA) as folder:
        for name, text in files.items():
            folder.write_text(name, text)
        return folder.commit()


def fail(out: Path, error: type[BaseException]) -> None:
    with FolderWriter(out, EXPERIMENT_SCHEMA) as folder:
        folder.write_text("note", "half")
        assert out.parent.is_dir()
        raise error


def race(out: Path) -> None:
    with FolderWriter(out, EXPERIMENT_SCHEMA) as second:
        second.write_text("note", "second")
        write(out, note="first")
        second.commit()


def test_commit_puts_a_verifiable_folder_in_place(tmp_path: Path) -> None:
    out = tmp_path / "result"
    with FolderWriter(out, EXPERIMENT_SCHEMA) as folder:
        folder.write_json("config.json", {"seed": 7})
        folder.file_path("arrays/keys.bin").write_bytes(b"\x00\x01")
        assert not out.exists()
        manifest = folder.commit()
    assert os.listdir(tmp_path) == ["result"]
    assert sorted(manifest.files) == ["arrays/keys.bin", "config.json"]
    assert read_schema(out) == EXPERIMENT_SCHEMA
    found = read_manifest(out, EXPERIMENT_SCHEMA)
    assert found == manifest
    checks = verify_files(out, found, expect_root=manifest.root)
    assert [check.name for check in checks] == [
        "root-digest",
        "expected-root",
        "file-set",
        "file-hash: arrays/keys.bin",
        "file-hash: config.json",
    ]
    assert all(check.passed for check in checks)


@pytest.mark.parametrize("kind", ["folder", "full folder", "file", "dangling link"])
def test_an_existing_path_is_refused_before_any_work_and_left_alone(tmp_path: Path, kind: str) -> None:
    """R107: a fresh output folder; an existing one is refused."""
    out = tmp_path / "result"
    if kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out.mkdir()
        if kind == "full folder":
            (out / "mine").write_text("mine")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(PackError, match="already exists; give a path that does not exist yet"):
        FolderWriter(out, EXPERIMENT_SCHEMA)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_missing_parents_are_made_and_removed_again_on_failure(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "result"
    with pytest.raises(RuntimeError):
        fail(out, RuntimeError)
    assert os.listdir(tmp_path) == []
    write(out, note="x")
    assert (out / "note").read_text() == "x"


@pytest.mark.parametrize(
    "name",
    ["x" * 256, "é" * 128, "new/" + "x" * 256, "/".join(["deep" * 50] * 25)],
    ids=["ascii", "utf8", "new", "path"],
)
def test_a_name_that_is_too_long_is_refused_at_the_start(tmp_path: Path, name: str) -> None:
    """The rename at the end would fail, after hours of work."""
    with pytest.raises(PackError, match="cannot be created: File name too long"):
        FolderWriter(tmp_path / name, EXPERIMENT_SCHEMA)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "\U0001f642" * 63, "\udcff" * 255])
def test_the_longest_names_work(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, note="x")
    assert os.listdir(tmp_path) == [name]


def test_a_parent_that_is_a_file_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match="cannot be created"):
        FolderWriter(tmp_path / "file" / "result", EXPERIMENT_SCHEMA)


def test_a_read_only_parent_is_refused_at_the_start() -> None:
    with pytest.raises(PackError, match="cannot be created"):
        FolderWriter(Path("/proc/result"), EXPERIMENT_SCHEMA)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_any_error_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        fail(tmp_path / "result", error)
    assert os.listdir(tmp_path) == []


def test_leaving_without_commit_leaves_nothing_behind(tmp_path: Path) -> None:
    with FolderWriter(tmp_path / "result", EXPERIMENT_SCHEMA) as folder:
        folder.write_text("note", "half")
    assert os.listdir(tmp_path) == []


def test_of_two_racing_writers_the_first_wins_and_the_second_is_told(tmp_path: Path) -> None:
    out = tmp_path / "result"
    with pytest.raises(PackError, match="already exists"):
        race(out)
    assert (out / "note").read_text() == "first"
    assert os.listdir(tmp_path) == ["result"]


def test_a_rename_onto_a_folder_that_appears_at_the_last_moment_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the rename can lose a race; the rename itself must not replace what is there."""
    out = tmp_path / "result"
    monkeypatch.setattr(FolderWriter, "_refuse_existing", lambda self: None)
    with pytest.raises(PackError, match="cannot be put in place"):
        race(out)
    assert (out / "note").read_text() == "first"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a//b",
        "a/../b",
        ".hidden",
        "a/.b",
        "a\\b",
        "a\0b",
        "a\nb",
        "CON:",
        "ä",
        "x" * 201,
        "manifest.json",
        "Manifest.JSON",
    ],
)
def test_file_names_that_could_leave_the_folder_or_hide_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackError, match=r"file name of a pack|manifest's own name"):
        check_file_name(name)
    with pytest.raises(PackError), FolderWriter(tmp_path / "result", EXPERIMENT_SCHEMA) as folder:
        folder.write_text(name, "x")


def test_a_link_inside_the_folder_is_refused_at_commit(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with FolderWriter(tmp_path / "r", EXPERIMENT_SCHEMA) as folder:
        folder.file_path("link").symlink_to(tmp_path / "secret")
        with pytest.raises(PackError, match="regular files only"):
            folder.commit()
    assert os.listdir(tmp_path) == ["secret"]


def test_want_of_room_anywhere_in_the_block_becomes_one_line(tmp_path: Path) -> None:
    with pytest.raises(PackError) as caught, FolderWriter(tmp_path / "result", EXPERIMENT_SCHEMA):
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/file")
    assert str(caught.value).startswith("'/somewhere/file' cannot be written: no space left on the device")
    assert "\n" not in str(caught.value)


def test_other_errors_of_the_system_are_not_mistaken_for_want_of_room(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), FolderWriter(tmp_path / "result", EXPERIMENT_SCHEMA):
        raise FileNotFoundError(errno.ENOENT, "No such file", "model.safetensors")


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from kvassay.pack.folder import FolderWriter
print("ready", flush=True)
for index in range(100_000):
    with FolderWriter(Path(sys.argv[1]) / f"result-{index}", "kvassay.experiment/1") as folder:
        for name in ("a", "b/c", "d"):
            folder.write_bytes(name, bytes([index % 256]) * 5000)
        folder.commit()
"""


@pytest.mark.parametrize("delay_ms", [0.0, 0.7, 1.9, 4.3])
def test_kill_9_leaves_whole_folders_or_none(tmp_path: Path, delay_ms: float) -> None:
    """Killed at some moment of writing the third folder or a later one."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while not (tmp_path / "result-2").exists():
        time.sleep(0.0005)
    time.sleep(delay_ms / 1000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    whole = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(whole) >= 3
    for path in whole:
        checks = verify_files(path, read_manifest(path, EXPERIMENT_SCHEMA))
        assert all(check.passed for check in checks), path
    assert all(".partial-" in path.name for path in set(tmp_path.iterdir()) - set(whole))
