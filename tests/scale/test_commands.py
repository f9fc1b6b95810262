"""The commands, from a matrix file to packs and SQL."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.pack.verify import verify_pack
from kvassay.scale.plans import read_groups
from kvassay.scale.status import read_status
from kvassay.scale.store import Store


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts, tiny_folder, other_folder) -> Path:
    """A store of two models, two workloads and two formats, run by three shards one after another."""
    from tests.scale.conftest import TASK_CONTRACT, TEXT_CONTRACT

    folder = tmp_path_factory.mktemp("matrix")
    (folder / "text.toml").write_text(TEXT_CONTRACT.format(texts=texts))
    (folder / "task.toml").write_text(TASK_CONTRACT)
    models = json.dumps([str(tiny_folder), str(other_folder)])
    (folder / "matrix.toml").write_text(
        f'schema = "kvassay.matrix/1"\nname = "two by two"\nmodels = {models}\n'
        'formats = ["int8-token-head", "int8-tensor"]\nworkloads = ["text.toml", "task.toml"]\n'
    )
    for shard in ("1/3", "2/3", "3/3"):
        assert run(["run", str(folder / "matrix.toml"), "--out", str(folder / "store"), "--shard", shard]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, object]:
    capsys.readouterr()
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_status_counts_every_cell_and_reference_once(finished, capsys) -> None:
    code, status = answer(capsys, ["status", str(finished / "store")])
    assert code == 0
    # Two models and two workloads: four references, and two formats, a canary and the reference again for each.
    assert status["counts"] == {"done": 20, "running": 0, "open": 0, "quarantined": 0, "blocked": 0}
    assert status["complete"]
    assert run(["status", str(finished / "store")]) == 0
    assert "20 of 20 cells and references are done" in capsys.readouterr().out


def test_candidates_compute_no_reference(finished) -> None:
    """Each document of a workload ran once for its four arms."""
    store = Store(str(finished / "store"))
    groups = read_groups(store)
    cells = [store.folder(f"cells/{cell.id}", cell.id) for group in groups for cell in group.cells]
    assert all(folder is not None and "reference_tokens" not in folder.facts for folder in cells)
    text = [group for group in groups if group.workload == "text"]
    references = [store.folder(f"references/{group.reference}", group.reference) for group in text]
    assert [folder.facts["reference_tokens"] for folder in references if folder] == [(20 + 2) * 44] * 2


def test_a_finished_matrix_runs_nothing_again(finished, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "store").rglob("*") if path.is_file()}
    code, status = answer(
        capsys, ["run", str(finished / "matrix.toml"), "--out", str(finished / "store"), "--shard=1/1"]
    )
    assert (code, status["complete"]) == (0, True)
    after = {path: path.stat().st_mtime_ns for path in (finished / "store").rglob("*") if path.is_file()}
    assert after == before


def test_merge_leaves_packs_that_verify_and_a_frontier(finished, capsys, tmp_path) -> None:
    code, merged = answer(capsys, ["merge", str(finished / "store"), "--out", str(tmp_path / "packs")])
    assert len(merged["packs"]) == 4
    outcomes = [pack["verdicts"]["exit_code"] for pack in merged["packs"]]
    assert code == (1 if 1 in outcomes else 3 if 3 in outcomes else 0)
    for pack in merged["packs"]:
        assert verify_pack(Path(pack["out"]), pack["root"]).passed
    assert answer(capsys, ["merge", str(finished / "store"), "--out", str(tmp_path / "packs")]) == (code, merged)
    points = merged["frontier"]
    assert len(points) == 8
    for point in points:
        verdict = [
            found["outcome"]
            for pack in merged["packs"]
            if (pack["model"], pack["workload"]) == (point["model"], point["workload"])
            for found in pack["verdicts"]["formats"]
            if found["arm"] == point["format"]
        ]
        assert point["outcomes"] == verdict
        assert point["on_frontier"] <= (point["met"] == 1)


def test_query_sees_the_rows_of_all_cells_and_packs(finished, capsys, tmp_path) -> None:
    store = str(finished / "store")
    sql = "SELECT workload, arm, count(*) AS n FROM tokens GROUP BY ALL ORDER BY ALL"
    code, rows = answer(capsys, ["query", store, sql])
    assert code == 0
    # Two models, 20 documents, 11 scored tokens that have a true next one.
    assert rows == [
        {"workload": "text", "arm": arm, "n": 440}
        for arm in ("f32 again 1", "int2-g32", "int8-tensor", "int8-token-head")
    ]
    assert run(["merge", store, "--out", str(tmp_path / "packs")]) in (0, 1, 3)
    packs = sorted((tmp_path / "packs").iterdir())
    sql = "SELECT count(DISTINCT source) AS packs, count(*) AS n FROM items"
    _, both = answer(capsys, ["query", str(packs[0]), sql, *(f"--pack={pack}" for pack in packs[1:])])
    _, cells = answer(capsys, ["query", store, sql])
    assert both[0]["n"] == cells[0]["n"] == 2 * 4 * 4
    _, verdicts = answer(
        capsys, ["query", str(packs[0]), "SELECT DISTINCT outcome FROM verdicts WHERE role = 'canary'"]
    )
    assert verdicts


def test_a_query_that_cannot_be_run_ends_in_one_line(finished, capsys) -> None:
    assert run(["query", str(finished / "store"), "SELECT nothing FROM nowhere"]) == 2
    assert "the query cannot be run" in capsys.readouterr().err


def test_plan_of_a_matrix_counts_what_the_run_counted(finished, capsys) -> None:
    code, cost = answer(capsys, ["plan", str(finished / "matrix.toml"), "--devices", "4", "--tflops", "0.01"])
    assert code == 0
    assert cost["total"]["cells"] == 16
    store = Store(str(finished / "store"))
    assert cost["total"]["reference_tokens"] == read_status(store, read_groups(store)).reference_tokens
    assert cost["hours"] == pytest.approx(cost["total"]["flops"] / 1e10 / 4 / 3600)
    assert run(["plan", str(finished / "matrix.toml"), "--devices", "4", "--tflops", "0.01"]) == 0
    assert re.search(r"^about [\d.]+ s on 4 devices at 1e\+10 FLOP/s each", capsys.readouterr().out, re.MULTILINE)
    kept = sum(path.stat().st_size for path in (finished / "store" / "units").iterdir())
    assert cost["total"]["stored_nbytes"] == pytest.approx(kept, rel=0.05)


def test_plan_at_the_rate_of_finished_cells_is_the_time_that_they_took(finished, capsys, tmp_path) -> None:
    store = str(finished / "store")
    code, cost = answer(capsys, ["plan", str(finished / "matrix.toml"), "--store", store])
    opened = Store(store)
    items = read_status(opened, read_groups(opened)).items
    assert code == 0
    assert f"{len(items)} finished cells and references" in cost["rate_source"]
    assert 3600 * cost["hours"] == pytest.approx(sum(item.seconds or 0 for item in items))
    code, empty = answer(capsys, ["plan", str(finished / "matrix.toml"), "--store", str(tmp_path / "empty")])
    assert code == 0
    assert "upper bound" in empty["rate_source"]


def test_plan_takes_one_rate(matrix_file, capsys) -> None:
    assert run(["plan", str(matrix_file()), "--tflops", "1", "--store", "here"]) == 2
    assert "name one of them" in capsys.readouterr().err


def test_plan_tells_a_matrix_from_a_model_by_content(matrix_file, capsys) -> None:
    path = matrix_file()
    assert run(["plan", str(path.parent / "text.toml")]) == 2
    assert "is no matrix file" in capsys.readouterr().err
    assert run(["plan", "smollm2-135m"]) == 2
    assert "needs --contract" in capsys.readouterr().err
    assert run(["plan", str(path.parent / "missing.toml")]) == 2
    assert "missing.toml' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(matrix_file, tmp_path, capsys, shard) -> None:
    assert run(["run", str(matrix_file()), "--out", str(tmp_path / "store"), "--shard", shard]) == 2
    assert "expected a number and a count" in capsys.readouterr().err


def test_a_store_without_a_matrix_is_named(tmp_path, capsys) -> None:
    assert run(["status", str(tmp_path)]) == 2
    assert "holds no matrix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus=1"], "--gpus does nothing with --executor local; it is for --executor ray"),
        (["--executor=slurm", "--address=x"], "--address does nothing with --executor slurm"),
        (["--executor=ray", "--workers=2"], "--workers does nothing with --executor ray; it is for"),
        (["--shard=1/2", "--memory=1GiB"], "--memory does nothing with --shard"),
        (["--executor=ray", "--gpus=-1"], "expected 0 to 1024"),
        (["--executor=ray", "--gpus=nan"], "expected 0 to 1024"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options, message, tmp_path, capsys) -> None:
    assert run(["run", str(tmp_path / "no matrix"), "--out", str(tmp_path / "store"), *options]) == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_run_says_that_what_is_finished_stays(matrix_file, tmp_path, capsys, monkeypatch) -> None:
    from kvassay.scale.executors import pull

    perform, asked = pull.perform, []

    def interrupted(*arguments):
        asked.append(arguments)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return perform(*arguments)

    monkeypatch.setattr(pull, "perform", interrupted)
    store = tmp_path / "store"
    assert run(["run", str(matrix_file()), "--out", str(store), "--shard=1/1"]) == 130
    assert f"interrupted; finished cells are kept, and the same command goes on from them: {store}" in (
        error := capsys.readouterr().err
    )
    assert "nothing was written" not in error
    assert list((store / "references").iterdir())


def test_an_interrupted_merge_says_which_packs_stay(finished, capsys, monkeypatch, tmp_path) -> None:
    from kvassay.scale import merge

    merged, asked = merge.merge_group, []

    def interrupted(*arguments):
        asked.append(arguments)
        if len(asked) > 1:
            raise KeyboardInterrupt
        return merged(*arguments)

    monkeypatch.setattr(merge, "merge_group", interrupted)
    assert run(["merge", str(finished / "store"), "--out", str(tmp_path / "packs")]) == 130
    assert f"interrupted; the packs that were merged are kept: {tmp_path / 'packs'}" in capsys.readouterr().err
    (pack,) = (tmp_path / "packs").iterdir()
    assert verify_pack(pack).passed
