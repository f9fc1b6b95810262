"""The shelf over packs of written answers, and over a pack that another took the place of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvassay.lab.pack_rows import WORST_FIRST
from kvassay.lab.server import Lab
from kvassay.pack.tables import TABLE_COLUMNS
from tests.lab.running import ask, post, running
from tests.pack.sample_pack import write_sample
from tests.pack.written_pack import TASK, write_written


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("shelf")
    write_written(folder / "written")
    with running(folder, "no-model") as opened:
        yield opened


def test_every_row_table_of_a_pack_has_a_first_order() -> None:
    assert set(WORST_FIRST) == set(TABLE_COLUMNS)
    assert all(column in TABLE_COLUMNS[table] for table, (column, _) in WORST_FIRST.items())


def test_a_pack_of_written_answers_is_shown_with_its_rows(lab: Lab) -> None:
    found = ask(lab, "api/packs/1")
    assert found.status == 200, found.json()
    (table,) = found.json()["tables"]
    assert (table["table"], table["rows"]) == ("answers", 3 * 60)
    rows = ask(lab, "api/packs/1/rows?table=answers&text=arguments")
    assert rows.status == 200, rows.json()
    assert 0 < rows.json()["total"] <= 3 * 60


def test_both_margins_of_a_written_task_can_be_changed(lab: Lab) -> None:
    bounds = {each["path"]: each["value"] for each in ask(lab, "api/packs/1").json()["bounds"]}
    assert (bounds[f"task.{TASK}.margin"], bounds[f"task.{TASK}.parse_margin"]) == (0.1, 0.05)
    found = post(lab, "api/packs/1/judge", {"bounds": {f"task.{TASK}.parse_margin": 0.0001}}).json()
    assert [each["key"] for each in found["changed"]] == [f"task.{TASK}.parse_margin"]


def test_a_pack_that_took_anothers_place_is_not_shown_as_the_old_one(tmp_path: Path) -> None:
    write_sample(tmp_path / "pack")
    with running(tmp_path, "no-model") as lab:
        (before,) = ask(lab, "api/packs").json()["packs"]
        shutil.rmtree(tmp_path / "pack")
        write_written(tmp_path / "pack")
        (after,) = ask(lab, "api/packs").json()["packs"]
        assert (before["contract"], after["contract"]) == ("sample", "written")
        assert ask(lab, f"api/packs/{after['number']}").json()["root"].startswith(after["root"])
        (tmp_path / "pack" / "plan.json").write_text("{}")
        assert "is not what its run wrote" in ask(lab, "api/packs").json()["packs"][0]["error"]
