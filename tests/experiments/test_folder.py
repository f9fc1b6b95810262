"""What a run writes, and that its audit accepts it without torch."""

from __future__ import annotations

import csv
import hashlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import kvassay
from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.errors import PackError
from kvassay.experiments.attention_error import ExperimentResult, Measurements, run_attention_error
from kvassay.experiments.attention_error_manifest import plan_json
from kvassay.experiments.attention_error_plan import (
    CELLS,
    EXCLUSIONS,
    EXPERIMENT_VERSION,
    NOT_PROVEN,
    ROW_COLUMNS,
    TABLES,
)
from kvassay.experiments.attention_error_summary import render_summary
from kvassay.experiments.attention_error_tables import attention_error_table, from_parquet
from kvassay.experiments.audit import audit_attention_error

PACKAGE = Path(kvassay.__file__).parent


def summary(result: ExperimentResult) -> str:
    return (result.folder / "summary.md").read_text()


def manifest(result: ExperimentResult) -> dict:
    return json.loads((result.folder / "manifest.json").read_text())


def test_the_audit_accepts_an_honest_folder(result: ExperimentResult) -> None:
    """R108: every check passes, each of the promised names is there, and the root is the one the run printed."""
    verification = audit_attention_error(result.folder, expect_root=result.root)
    assert verification.failed == ()
    names = [check.name for check in verification.checks]
    expected = ["manifest", "root-digest", "expected-root", "file-set", "source-files", "plan", "arrays"]
    expected += ["array-hashes", "inputs-from-seeds", "codes", "half-step", "outputs", "summary"]
    expected += [f"{kind}: {table}" for kind in ("table", "csv") for table in TABLES]
    assert set(expected) <= set(names)
    assert verification.root == result.root


def test_the_audit_needs_no_torch(result: ExperimentResult) -> None:
    """R108: an auditor's install has no torch; here its import is made impossible."""
    program = (
        "import sys; sys.modules.update(torch=None, transformers=None, jaxtyping=None)\n"
        "from pathlib import Path\n"
        "from kvassay.experiments.audit import audit_attention_error\n"
        "print(audit_attention_error(Path(sys.argv[1])).passed)"
    )
    run = subprocess.run([sys.executable, "-c", program, result.folder], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_an_existing_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    """R107."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PackError, match="exists"):
        run_attention_error(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_runs_give_equal_files(result: ExperimentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R105, R111: a second run, with the network made unusable, writes the same files byte for byte."""

    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the experiment opened a socket")

    monkeypatch.setattr(socket, "socket", no_network)
    second = run_attention_error(tmp_path / "again")
    first_files, second_files = manifest(result)["files"], manifest(second)["files"]
    assert first_files == second_files


def test_arrays_are_saved_with_a_hash_each(result: ExperimentResult) -> None:
    """R73: inputs, reference, codes, scales and outputs of every cell; arrays.json gives the hash of each."""
    listed = json.loads((result.folder / "arrays.json").read_text())
    count = 0
    for cell in CELLS:
        for name, array in load_file(result.folder / cell.path).items():
            entry = listed[f"{cell.name}/{name}"]
            assert entry["sha256"] == hashlib.sha256(array.tobytes()).hexdigest()
            assert (entry["dtype"], entry["shape"], entry["nbytes"]) == (
                array.dtype.name,
                list(array.shape),
                array.nbytes,
            )
            count += 1
    assert count == len(listed) == 405


def test_csv_and_parquet_hold_the_measured_rows_exactly(result: ExperimentResult, measured: Measurements) -> None:
    """R94: full precision in both, so that a spreadsheet and a program read the same numbers."""
    rows = from_parquet((result.folder / "rows.parquet").read_bytes(), ROW_COLUMNS, "rows.parquet")
    assert rows == measured.tables.rows
    with (result.folder / "rows.csv").open(newline="") as file:
        for read, row in zip(csv.DictReader(file), measured.tables.rows, strict=True):
            assert float(read["output_max_abs"]) == row["output_max_abs"]
            assert read["keys_clipping_max_abs"] == ""


def test_the_worst_case_leads(result: ExperimentResult) -> None:
    """R93: the summary's first figure is 4.136, before the mild ones; the display table starts with it."""
    text = summary(result)
    assert text.index("4.136") < text.index("0.00247") < text.index("## Bytes")
    shown = attention_error_table(result.tables.rows)
    assert shown[0]["output max abs error"] == result.worst["output_max_abs"]
    errors = [row["output max abs error"] for row in shown]
    assert errors == sorted(errors, reverse=True)


def test_all_36_rows_are_printed(result: ExperimentResult) -> None:
    """R90: every row of the matrix as one line of the summary's first table."""
    lines = summary(result).split("## All 36 rows")[1].split("## Bytes")[0].splitlines()
    printed = [line.split("|")[1:6] for line in lines if line.startswith("| ")][2:]
    expected = {
        (str(r["seed"]), str(r["n_tokens"]), str(r["input"]), str(r["quantizer"]), f"{r['output_max_abs']:.4g}")
        for r in result.tables.rows
    }
    assert len(printed) == 36
    assert {tuple(cell.strip() for cell in cells) for cells in printed} == expected


def test_labels_exclusions_and_limits_are_printed(result: ExperimentResult) -> None:
    """R74, R80, R83, R84, R86, R97: synthetic data, what the bytes leave out, what is not proven."""
    text = summary(result)
    assert text.index("Synthetic data") < text.index("4.136")
    for line in (*EXCLUSIONS, *NOT_PROVEN):
        assert f"- {line}\n" in text
    for phrase in ("object headers, allocator", "peak memory", "throughput", "quality of a task", "not KIVI"):
        assert phrase in text


def test_the_byte_table_is_printed(result: ExperimentResult) -> None:
    """R66, R85, R87, R88, R89."""
    section = summary(result).split("## Bytes")[1].split("## Where")[0]
    for figure in ("4104", "4608", "16,392", "18,432", "65,544", "73,728", "16,384", "65,536", "262,144"):
        assert f"| {figure} |" in section
    assert "3.556 times (71.875% saved)" in section
    assert "float32 KV" in section
    assert "16-bit KV" in section


def test_the_summary_links_figures_to_rows_arrays_and_source(result: ExperimentResult) -> None:
    """R114: tables, arrays, manifest, platform and the command that recomputes them."""
    records = summary(result).split("## Records")[1]
    for name in ("`rows`", "arrays/*.safetensors", "arrays.json", "manifest.json", "experiment.json", "kvassay verify"):
        assert name in records
    assert "No other platform is claimed" in records


def test_the_manifest_binds_source_commit_and_environment(result: ExperimentResult) -> None:
    """R112, R113, R106, R110: hash of each executed source file, commit, versions; no user, host or path."""
    recorded = manifest(result)
    for name in ("experiments/attention_error.py", "experiments/attention_error_measure.py", "formats/integer.py"):
        digest = hashlib.sha256((PACKAGE / name).read_bytes()).hexdigest()
        assert recorded["sources"][f"kvassay/{name}"] == digest
    assert recorded["git_commit"] is None or len(recorded["git_commit"]) == 40
    assert {"python", "numpy", "torch", "system", "machine"} <= set(recorded["environment"])
    assert str(Path.home()) not in json.dumps(recorded)
    assert str(PACKAGE) not in json.dumps(recorded)


def test_words_and_plan_are_bound_to_the_version(measured: Measurements) -> None:
    """The audit compares plan and summary word for word: when this fails, raise EXPERIMENT_VERSION with the digests."""
    text = render_summary(measured.tables, {})
    found = (EXPERIMENT_VERSION, sha256_json(plan_json())[:16], sha256_bytes(text.encode())[:16])
    assert found == (1, "0c8f2307dde982bc", "270bbc3b5e79b88a")
