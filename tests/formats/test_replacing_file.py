"""Where a file may be put: never in the place of what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kvassay.errors import ContainerError
from kvassay.formats.container import replacing_file


def _write(path: Path) -> None:
    with replacing_file(path) as file:
        file.write(b"new")


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_is_refused_and_stays(through_link, tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    target = tmp_path / "link"
    target.symlink_to(pipe)
    with pytest.raises(ContainerError, match="a device or a pipe"):
        _write(target if through_link else pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "file"
    file.write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to(file)
    _write(link)
    assert link.is_symlink()
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize("path", ["", ".", "/", "a\0b", "x" * 5000])
def test_what_names_no_file_is_refused_in_words(path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContainerError, match="cannot be written"):
        _write(Path(path))
    assert os.listdir(tmp_path) == []


def test_a_loop_of_links_is_refused(tmp_path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(ContainerError, match="cannot be written"):
        _write(tmp_path / "one")
