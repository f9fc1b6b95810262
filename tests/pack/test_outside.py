"""Nothing is written into a result folder, which would no longer be what its run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.errors import PackError
from kvassay.find.search import SearchOptions, run_search
from kvassay.pack.folder import EXPERIMENT_SCHEMA, FolderWriter
from kvassay.pack.plain_files import list_files


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "{pack}", "--to", "csv", "--out", "{pack}/clauses.csv"],
        ["export", "{pack}", "--to", "junit", "--out", "{link}/rows/../junit.xml"],
        ["report", "{pack}", "--out", "{pack}/rows/report.html"],
        ["keygen", "{pack}/alice"],
        ["contract", "init", "{pack}/ours.toml", "--for", "chat", "--yes"],
    ],
)
def test_a_file_that_would_lie_in_a_pack_is_refused(arguments, pack: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "link").symlink_to(pack)
    before = list_files(pack)
    assert run([part.format(pack=pack, link=tmp_path / "link") for part in arguments]) == 2
    error = capsys.readouterr().err
    assert f"would lie in the result folder {str(pack)!r}" in error
    assert "give a path outside of it" in error
    assert list_files(pack) == before


def test_a_folder_that_would_lie_in_a_pack_is_refused(pack: Path) -> None:
    with pytest.raises(PackError, match="would lie in the result folder"):
        FolderWriter(pack / "charts" / "second", EXPERIMENT_SCHEMA)


def test_a_manifest_of_somebody_else_forbids_nothing(tmp_path: Path) -> None:
    """As of a web page, or of a store of cells."""
    (tmp_path / "manifest.json").write_text('{"name": "an app"}')
    with FolderWriter(tmp_path / "result", EXPERIMENT_SCHEMA) as folder:
        folder.write_json("a.json", {})
        folder.commit()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("{pack}", "exists"),
        ("{pack}/found", "would lie in"),
        ("/", "has no name"),
        (".", "exists"),
        ("/proc/found", "cannot be created"),
    ],
)
def test_a_search_whose_pack_cannot_be_written_ends_before_it_begins(out, message, pack: Path) -> None:
    """Of a model that does not even exist: nothing of it was asked."""
    with pytest.raises(PackError, match=message):
        run_search("no-model", "no contract", Path(out.format(pack=pack)), SearchOptions())
