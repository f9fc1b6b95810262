"""Killed workers, poisoned cells, damaged references, two coordinators: nothing lost, nothing doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvassay.scale.work as work
from kvassay.cli.app import run
from kvassay.errors import StoreError
from kvassay.scale.bench import Bench
from kvassay.scale.cell import Item, items_of
from kvassay.scale.claims import Watch, this_process
from kvassay.scale.executors.base import Job
from kvassay.scale.executors.pull import PullExecutor
from kvassay.scale.failures import failures_of
from kvassay.scale.matrix import load_matrix
from kvassay.scale.planning import plan_matrix
from kvassay.scale.plans import write_plan
from kvassay.scale.state import State
from kvassay.scale.status import read_status
from kvassay.scale.store import Store
from kvassay.scale.work import perform
from tests.scale.killing import run_under_fire


@pytest.fixture
def plan(matrix_file):
    return plan_matrix(load_matrix(matrix_file()), lambda _line: None)


def run_quietly(plan, root: Path, bench: Bench | None = None) -> Store:
    store = Store(str(root))
    digest = write_plan(store, plan)
    PullExecutor(bench).run(Job(store, digest, items_of(plan), 1, 2.0), lambda _item, _state: None)
    return store


def finished_files(root: Path) -> set[str]:
    """Names, which hold the digest of the content, of all rows and records."""
    return {path.name for path in root.glob("cells/*/*") if path.name.startswith(("tokens-", "items-", "record-"))}


@pytest.mark.parametrize("parts", [1, 2])
def test_killed_at_random_the_result_is_the_same(plan, tmp_path, parts) -> None:
    quiet = run_quietly(plan, tmp_path / "quiet")
    fired = run_under_fire(plan, tmp_path / "fired", kills=12, seed=parts, parts=parts, longest_seconds=0.3)
    assert fired.kills >= 3, "a quick machine ends its work before it is killed"
    assert fired.results_sha256 == read_status(quiet, plan.groups).results_sha256
    assert finished_files(tmp_path / "fired") == finished_files(tmp_path / "quiet")
    assert not [path for path in (tmp_path / "fired").rglob(".*") if path.is_file()]
    assert not list((tmp_path / "fired").glob("claims/*"))
    again = run_quietly(plan, tmp_path / "fired")
    assert read_status(again, plan.groups).results_sha256 == fired.results_sha256


def test_two_at_once_on_one_store_end_with_one_result(plan, tmp_path) -> None:
    both = run_under_fire(plan, tmp_path / "both", kills=0, seed=0, workers=3)
    assert (both.kills, both.tries) == (0, 1)
    assert both.results_sha256 == read_status(run_quietly(plan, tmp_path / "one"), plan.groups).results_sha256


def poison(monkeypatch: pytest.MonkeyPatch, arm: str | None) -> None:
    """The real measuring, which for one arm (or for references) fails as a fault of a codec would."""
    cell, reference = work.run_cell, work.run_reference

    def poisoned_cell(bench, item, *rest):
        if item.cell.arm == arm:
            raise ArithmeticError("scale of group 3 is zero")
        return cell(bench, item, *rest)

    def poisoned_reference(bench, item, *rest):
        if arm is None:
            raise ArithmeticError("the reference fails")
        return reference(bench, item, *rest)

    monkeypatch.setattr(work, "run_cell", poisoned_cell)
    monkeypatch.setattr(work, "run_reference", poisoned_reference)


def test_a_poisoned_cell_is_quarantined_with_its_traceback_and_the_rest_goes_on(
    matrix_file, tmp_path, monkeypatch, capsys
) -> None:
    arguments = ["run", str(matrix_file()), "--out", str(tmp_path / "store"), "--shard", "1/1"]
    with monkeypatch.context() as poisoned:
        poison(poisoned, "int8-tensor")
        assert run(arguments) == 3
    shown = capsys.readouterr().out
    assert "quarantined, 3 tries raised an error: ArithmeticError: scale of group 3 is zero" in shown
    assert "4 of 5 cells and references are done" in shown
    store = Store(str(tmp_path / "store"))
    plan = plan_matrix(load_matrix(matrix_file()), lambda _line: None)
    bad = next(cell for cell in plan.groups[0].cells if cell.arm == "int8-tensor")
    failures = failures_of(store, bad.id)
    assert failures.errors == 3
    assert failures.last is not None
    assert "poisoned_cell" in failures.last.text
    assert run(["merge", str(tmp_path / "store"), "--out", str(tmp_path / "packs")]) == 3
    assert "1 cells are not done" in capsys.readouterr().out
    # Mended, and still set aside until its user says otherwise.
    assert run(arguments) == 3
    assert run([*arguments, "--retry"]) == 0
    assert read_status(store, plan.groups).complete


def test_cells_of_a_poisoned_reference_are_told_to_be_blocked(plan, tmp_path, monkeypatch) -> None:
    poison(monkeypatch, None)
    store = run_quietly(plan, tmp_path / "store")
    assert read_status(store, plan.groups).counts == {
        "done": 0,
        "running": 0,
        "open": 0,
        "quarantined": 1,
        "blocked": 4,
    }


def test_a_finished_cell_is_kept_and_a_waiting_one_waits(plan, tmp_path) -> None:
    store = Store(str(tmp_path / "store"))
    (group,) = plan.groups
    bench, owner, watch = Bench(), this_process(), Watch()
    cell = Item(group, group.cells[0])
    assert perform(store, bench, cell, owner, watch) is State.WAITING
    assert perform(store, bench, Item(group, None), owner, watch) is State.DONE
    assert perform(store, bench, cell, owner, watch) is State.DONE
    assert perform(store, bench, cell, owner, watch) is State.KEPT


def test_a_damaged_reference_is_named_before_a_cell_reads_it(plan, tmp_path) -> None:
    store = Store(str(tmp_path / "store"))
    (group,) = plan.groups
    bench, owner, watch = Bench(), this_process(), Watch()
    perform(store, bench, Item(group, None), owner, watch)
    unit = sorted((tmp_path / "store" / "units").iterdir())[0]
    data = bytearray(unit.read_bytes())
    data[-1] ^= 1
    unit.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="is not what the reference"):
        perform(store, bench, Item(group, group.cells[0]), owner, watch)
    assert not failures_of(store, group.cells[0].id).errors


def test_a_lost_document_of_a_reference_is_computed_alone(plan, tmp_path) -> None:
    """A reference that was cut short goes on where it was."""
    store = Store(str(tmp_path / "store"))
    (group,) = plan.groups
    bench, owner, watch = Bench(), this_process(), Watch()
    perform(store, bench, Item(group, None), owner, watch)
    first = store.folder(f"references/{group.reference}", group.reference)
    store.remove(f"references/{group.reference}")
    sorted((tmp_path / "store" / "units").iterdir())[0].unlink()
    perform(store, bench, Item(group, None), owner, watch)
    second = store.folder(f"references/{group.reference}", group.reference)
    assert first is not None
    assert second is not None
    assert second.facts["reference_tokens"] == 44
    assert second.facts["reused_tokens"] == first.facts["reference_tokens"] - 44
    assert second.result_sha256 == first.result_sha256


@pytest.mark.parametrize("what", ["engine", "device", "weights"])
def test_a_worker_of_another_make_refuses_the_cell(plan, tmp_path, what) -> None:
    """What would change the last bits does not come in unseen; a user who names the device takes the difference."""
    (group,) = plan.groups
    changes = {
        "engine": {"engine": "kvassay 0.0.1, torch 1.0"},
        "device": {"device": "riscv64, 1 threads"},
        "weights": {"model": group.model.model_copy(update={"weights_sha256": "0" * 64})},
    }
    store = Store(str(tmp_path / "store"))
    other = group.model_copy(update=changes[what])
    state = perform(store, Bench(), Item(other, None), this_process(), Watch())
    assert state is State.FAILED
    failure = failures_of(store, group.reference).last
    assert failure is not None
    assert "planned for" in failure.text
    if what == "device":
        named = other.model_copy(update={"device_given": True})
        assert perform(store, Bench(), Item(named, None), this_process(), Watch()) is State.DONE
