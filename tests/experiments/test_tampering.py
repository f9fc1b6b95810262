"""R108: every way to falsify a folder fails the audit under the name of what was falsified.

Most of these tests re-hash the folder afterwards, as a careful forger would, so that only the recomputation can object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from kvassay.core.digest import sha256_json
from kvassay.experiments import attention_error
from kvassay.experiments.attention_error import ExperimentResult, run_attention_error
from kvassay.experiments.attention_error_plan import TABLES
from kvassay.experiments.attention_error_tables import from_parquet, to_csv, to_parquet
from kvassay.experiments.audit import audit_attention_error

CELL = "arrays/seed41-n1024-outlier40.safetensors"
Arrays = dict[str, np.ndarray]


def failed(folder: Path, expect_root: str | None = None) -> set[str]:
    verification = audit_attention_error(folder, expect_root)
    assert all(check.sentence for check in verification.checks)
    return {check.name for check in verification.failed}


def rehash(folder: Path, edit: Callable[[dict], None] = lambda manifest: None) -> None:
    """Make the manifest agree with the files, as a forger would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    manifest["files"] = {
        name: {
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
            "nbytes": (folder / name).stat().st_size,
        }
        for name in names
        if name != "manifest.json"
    }
    edit(manifest)
    manifest["root"] = sha256_json({key: value for key, value in manifest.items() if key != "root"})
    path.write_text(json.dumps(manifest))


def edit_arrays(folder: Path, edit: Callable[[Arrays], None], *, relist: bool = True) -> None:
    """Change arrays of one cell, list their new hashes in arrays.json, and re-hash."""
    tensors = load_file(folder / CELL)
    edit(tensors)
    save_file(tensors, folder / CELL)
    if relist:
        listed = json.loads((folder / "arrays.json").read_text())
        stem = Path(CELL).stem
        for name, array in tensors.items():
            listed[f"{stem}/{name}"]["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
        (folder / "arrays.json").write_text(json.dumps(listed))
    rehash(folder)


def edit_table(folder: Path, name: str, edit: Callable[[list[dict]], None]) -> None:
    """Change a table in Parquet and CSV alike, and re-hash."""
    columns = TABLES[name]
    rows = from_parquet((folder / f"{name}.parquet").read_bytes(), columns, name)
    edit(rows)
    (folder / f"{name}.parquet").write_bytes(to_parquet(rows, columns))
    (folder / f"{name}.csv").write_text(to_csv(rows, columns))
    rehash(folder)


def add(name: str, place: tuple[int, int], amount: float) -> Callable[[Arrays], None]:
    def edit(tensors: Arrays) -> None:
        tensors[name][place] += np.array(amount, tensors[name].dtype)

    return edit


def put(column: str, value: object, index: int = 0) -> Callable[[list[dict]], None]:
    def edit(rows: list[dict]) -> None:
        assert rows[index][column] != value
        rows[index][column] = value

    return edit


def test_one_flipped_bit_in_any_file_fails_by_its_name(result: ExperimentResult, copied: Path) -> None:
    names = list(json.loads((copied / "manifest.json").read_text())["files"])
    assert len(names) == 29
    for name in names:
        data = bytearray((copied / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copied / name).write_bytes(data)
    assert {f"file-hash: {name}" for name in names} <= failed(copied)


def test_rehashing_alone_changes_nothing(copied: Path) -> None:
    """The forger's tool itself is sound: without an edit the audit still passes."""
    rehash(copied)
    assert failed(copied) == set()


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        pytest.param(add("int8-token-head.keys.codes", (0, 5), 1), "codes", id="a code of the worst cell"),
        pytest.param(add("int8-tensor.values.codes", (1023, 31), -1), "codes", id="the last code"),
        pytest.param(add("int8-token-head.keys.scales", (7, 0), 1e-9), "codes", id="a scale by an ulp"),
        pytest.param(add("channel-keys.keys.scales", (0, 3), 1e-3), "codes", id="a channel scale"),
        pytest.param(add("exact-outlier-row.values.exact", (0, 0), 1e-3), "codes", id="the exact row"),
        pytest.param(add("stale-scale.keys.codes", (0, 0), -1), "codes", id="a clipped code"),
        pytest.param(add("keys", (0, 0), 1e-9), "inputs-from-seeds", id="the outlier"),
        pytest.param(add("values", (1000, 1), 1e-11), "inputs-from-seeds", id="a value"),
        pytest.param(add("queries", (2, 2), 1e-6), "inputs-from-seeds", id="a query"),
        pytest.param(add("int8-token-head.output", (3, 3), 1e-9), "outputs", id="an output"),
        pytest.param(add("reference.output", (0, 0), 1e-9), "outputs", id="the reference"),
    ],
)
def test_rehashed_arrays(copied: Path, edit: Callable[[Arrays], None], name: str) -> None:
    edit_arrays(copied, edit)
    assert name in failed(copied)


def test_a_code_beyond_half_a_step_also_fails_the_bound(copied: Path) -> None:
    """R75."""
    edit_arrays(copied, add("int8-token-head.keys.codes", (0, 5), 1))
    assert {"half-step", "codes", "outputs", "table: rows"} <= failed(copied)


def test_arrays_that_differ_from_their_listed_hash(copied: Path) -> None:
    edit_arrays(copied, add("int8-token-head.keys.codes", (0, 5), 1), relist=False)
    assert "array-hashes" in failed(copied)


@pytest.mark.parametrize(
    ("table", "edit"),
    [
        pytest.param("rows", put("output_max_abs", 0.0041, 35), id="a milder worst case"),
        pytest.param("rows", put("output_max_abs", 0.008151809014, 0), id="a figure by 3e-12"),
        pytest.param("rows", put("keys_clipped", 1), id="a clipping count"),
        pytest.param("rows", put("keys_clipping_max_abs", 0.0), id="absent made zero"),
        pytest.param("rows", put("stored_nbytes", 4096), id="bytes without scales"),
        pytest.param("rows", put("quantizer", "int8-token-head"), id="another quantizer"),
        pytest.param("rows", lambda rows: rows.pop(35), id="a deleted row"),
        pytest.param("rows", lambda rows: rows.append(rows[0]), id="a doubled row"),
        pytest.param("rows", lambda rows: rows.clear(), id="no rows"),
        pytest.param("rows", lambda rows: rows.reverse(), id="another order"),
        pytest.param("variants", put("output_max_abs", 0.25, 6), id="a variant"),
        pytest.param("bytes", put("float32_over_stored", 4.0, 1), id="fourfold"),
        pytest.param("exercise", put("scales_changed", 64, 1), id="the exercise"),
    ],
)
def test_rehashed_tables(copied: Path, table: str, edit: Callable[[list[dict]], None]) -> None:
    edit_table(copied, table, edit)
    assert f"table: {table}" in failed(copied)


@pytest.mark.parametrize("table", TABLES)
def test_a_csv_that_says_another_thing_than_the_rows(copied: Path, table: str) -> None:
    path = copied / f"{table}.csv"
    path.write_text(path.read_text().replace("64", "65", 1))
    rehash(copied)
    assert failed(copied) == {f"csv: {table}"}


@pytest.mark.parametrize(("found", "put_in"), [("error of 4.136", "error of 0.004"), ("not KIVI", "KIVI")])
def test_a_summary_that_says_another_thing(copied: Path, found: str, put_in: str) -> None:
    path = copied / "summary.md"
    assert found in path.read_text()
    path.write_text(path.read_text().replace(found, put_in))
    rehash(copied)
    assert failed(copied) == {"summary"}


def test_a_plan_that_hides_its_limits(copied: Path) -> None:
    """R74, R97."""
    path = copied / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "not_proven": []}))
    rehash(copied)
    assert failed(copied) == {"plan"}


def test_other_seeds_under_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on luckier draws is consistent in itself; only the regeneration from the seeds finds it."""
    draw = attention_error.draw_inputs

    def luckier(seed: int) -> dict:
        return {cell._replace(seed=seed): inputs for cell, inputs in draw(seed + 1).items()}

    monkeypatch.setattr(attention_error, "draw_inputs", luckier)
    run = run_attention_error(tmp_path / "run")
    assert failed(run.folder, expect_root=run.root) == {"inputs-from-seeds"}


def test_a_faulty_codec_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit shares no code with the codecs: rounding toward zero in the product cannot pass."""
    monkeypatch.setattr(torch.Tensor, "round_", torch.Tensor.trunc_)
    run = run_attention_error(tmp_path / "run")
    monkeypatch.undo()
    assert failed(run.folder, expect_root=run.root) == {"codes", "half-step"}


def test_a_faulty_measurement_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean in place of a maximum is consistent in rows, CSV and summary, and fails as rows."""
    measure = attention_error.measure_pair

    def milder(*arguments: object) -> object:
        measured = measure(*arguments)
        rmse = measured.figures["output_rmse"]
        return measured._replace(figures={**measured.figures, "output_max_abs": rmse})

    monkeypatch.setattr(attention_error, "measure_pair", milder)
    run = run_attention_error(tmp_path / "run")
    assert failed(run.folder) == {"table: rows", "table: variants"}


def test_a_manifest_without_the_source_that_ran(copied: Path) -> None:
    """R112."""
    rehash(copied, lambda manifest: manifest["sources"].pop("kvassay/formats/integer.py"))
    assert failed(copied) == {"source-files"}


def test_another_commit_fails_against_the_printed_root(result: ExperimentResult, copied: Path) -> None:
    """R113: what nothing can recompute is bound by the root digest that the run prints."""
    rehash(copied, lambda manifest: manifest.update(git_commit="0" * 40))
    assert failed(copied, expect_root=result.root) == {"expected-root"}


def _without(name: str) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        tensors = load_file(folder / CELL)
        del tensors[name]
        save_file(tensors, folder / CELL)

    return break_it


def _with(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        tensors = load_file(folder / CELL)
        tensors[name] = change(tensors.get(name, tensors["queries"]))
        save_file(tensors, folder / CELL)

    return break_it


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda folder: (folder / CELL).write_bytes(b""), id="empty"),
        pytest.param(lambda folder: (folder / CELL).write_bytes(b"\xff" * 64), id="a header of 2^64 bytes"),
        pytest.param(lambda folder: (folder / CELL).unlink(), id="missing"),
        pytest.param(_without("int8-tensor.keys.scales"), id="an array missing"),
        pytest.param(_with("extra", lambda x: x), id="an array too many"),
        pytest.param(_with("keys", lambda x: x.astype(np.float32)), id="another dtype"),
        pytest.param(_with("keys", lambda x: x[:, :16].copy()), id="another shape"),
        pytest.param(_with("values", lambda x: x * np.nan), id="NaN"),
        pytest.param(_with("int8-token-head.keys.scales", lambda x: x / 0), id="infinite scales"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_broken_arrays_are_named_and_do_not_crash(copied: Path, break_it: Callable[[Path], None]) -> None:
    break_it(copied)
    rehash(copied)
    verification = audit_attention_error(copied)
    assert [check.name for check in verification.failed] == ["arrays"]
    assert Path(CELL).stem in verification.failed[0].sentence


def test_zero_scales_fail_and_do_not_crash(copied: Path) -> None:
    def zero(tensors: Arrays) -> None:
        tensors["int8-tensor.keys.scales"][:] = 0

    edit_arrays(copied, zero)
    assert "codes" in failed(copied)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(pa.table({"seed": [7]}), id="other columns"),
        pytest.param(None, id="no Parquet"),
    ],
)
def test_broken_tables_are_named(copied: Path, table: pa.Table | None) -> None:
    path = copied / "rows.parquet"
    path.write_bytes(b"PAR1") if table is None else pq.write_table(table, path, compression="none")
    rehash(copied)
    verification = audit_attention_error(copied)
    assert [check.name for check in verification.failed] == ["tables"]
    assert "rows.parquet" in verification.failed[0].sentence


def test_a_compressed_table_is_refused_before_it_unfolds(copied: Path) -> None:
    path = copied / "rows.parquet"
    pq.write_table(pq.read_table(path), path, compression="zstd")
    rehash(copied)
    assert failed(copied) == {"tables"}


def test_a_missing_or_foreign_manifest(copied: Path) -> None:
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "experiment": "another"}))
    assert failed(copied) == {"manifest"}
    path.unlink()
    assert failed(copied) == {"manifest"}


def test_added_and_removed_files_are_named(copied: Path) -> None:
    (copied / "notes.txt").write_text("x")
    (copied / "summary.md").unlink()
    assert {"file-set", "file-unlisted: notes.txt", "file-missing: summary.md", "summary"} <= failed(copied)
