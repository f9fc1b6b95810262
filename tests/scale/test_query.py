"""SQL over packs: each counted once, each as its run wrote it, and no fault of a statement ends in a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.pack.tables import TABLE_COLUMNS
from tests.pack.sample_pack import write_sample
from tests.pack.tampering import edit, rehash
from tests.pack.written_pack import write_written

COUNT = "SELECT count(*) AS n FROM tokens"


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder whose name a shell, a glob or SQL would read otherwise."""
    out = tmp_path_factory.mktemp("packs") / "it's [1] *é" / "sample"
    out.parent.mkdir()
    write_sample(out)
    return out


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict]:
    assert run(["query", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_pack_that_is_named_twice_is_counted_once(pack, capsys, tmp_path, monkeypatch) -> None:
    (once,) = rows(capsys, pack, COUNT)
    assert once["n"] > 0
    monkeypatch.chdir(pack.parent)
    for again in (pack, "sample", "../it's [1] *é/sample"):
        assert rows(capsys, pack, COUNT, "--pack", again) == [once]
        assert len(rows(capsys, pack, "SELECT DISTINCT source FROM verdicts", "--pack", again)) == 1
    write_sample(tmp_path / "other")
    assert rows(capsys, pack, COUNT, "--pack", tmp_path / "other") == [{"n": 2 * once["n"]}]


def test_every_row_table_can_be_asked(tmp_path, capsys) -> None:
    write_written(tmp_path / "pack")
    sql = "SELECT count(*) AS n FROM "
    found = {table: rows(capsys, tmp_path / "pack", sql + table)[0]["n"] for table in TABLE_COLUMNS}
    assert found == {**dict.fromkeys(TABLE_COLUMNS, 0), "answers": 180}


@pytest.mark.parametrize("file", ["rows/tokens.parquet", "verdicts.json"])
def test_rows_of_a_pack_that_was_changed_are_not_answered(file, tmp_path, capsys) -> None:
    """As of every other command that reads a pack's figures."""
    write_sample(tmp_path / "pack")
    (tmp_path / "pack" / file).write_bytes(b"x")
    assert run(["query", str(tmp_path / "pack"), "SELECT 1"]) == 2
    assert f"is not what its run wrote: {file}" in capsys.readouterr().err


def test_a_strangers_pack_without_a_models_name_is_answered(tmp_path, capsys) -> None:
    write_sample(tmp_path / "pack")
    edit(tmp_path / "pack", "subject.json", lambda subject: subject.update(model=[1]))
    rehash(tmp_path / "pack")
    assert rows(capsys, tmp_path / "pack", "SELECT DISTINCT model FROM tokens") == [{"model": None}]


@pytest.mark.parametrize("sql", ["", " ", "/* nothing */", ";"])
def test_a_statement_that_says_nothing_is_a_usage_error(sql, pack, capsys) -> None:
    assert run(["query", str(pack), sql]) == 2
    error = capsys.readouterr().err
    assert "kvassay: error: the " in error
    assert error.count("\n") == 1


def test_json_loses_no_column_of_an_equal_name(pack, capsys) -> None:
    assert run(["query", str(pack), "SELECT 1 AS a, 2 AS a", "--json"]) == 2
    assert "two columns are called 'a'" in capsys.readouterr().err
    assert run(["query", str(pack), "SELECT 1 AS a, 2 AS a"]) == 0
