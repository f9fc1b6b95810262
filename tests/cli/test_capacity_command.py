"""`kvassay capacity` from the command line: R31 by formula and in real caches, limits by name, refusals."""

from __future__ import annotations

import json
import sys

import pytest

from kvassay.cli.app import run
from kvassay.core.capacity import step_workspace_nbytes
from kvassay.core.format_names import parse_format
from kvassay.core.ledger import predict_ledger
from kvassay.core.model_source import geometry_of
from tests.cli.test_command_line import one_line_error, write_config

PAGING_NBYTES = 3 * 2 * 2 * 16
"""Layers x sides x pages of 64 tokens, each with a table entry and a record."""
ROW_NBYTES = 3 * 128 * 2 * 64 * 2 * 2 + PAGING_NBYTES
"""128 tokens of the written config in 16 bits: layers x tokens x heads x channels x sides x bytes."""
FOUR_BIT_ROW_NBYTES = 3 * 128 * 2 * 64 * 2 * 9 // 16 + PAGING_NBYTES


def answer(capsys, *arguments: str, code: int = 0) -> dict:
    assert run(["capacity", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_r31_several_formats_make_one_table_with_ratio_and_both_answers(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    arguments = [model, "--format", "int4-g64", "--format", "f16", "--budget", f"{9 * ROW_NBYTES}B", "--context", "128"]
    found = answer(capsys, *arguments)
    four_bit, plain = found["formats"]
    assert (plain["largest_batch"], plain["next_nbytes"]) == (9, 10 * ROW_NBYTES)
    assert four_bit["stored_bits"] == 16 * FOUR_BIT_ROW_NBYTES / (ROW_NBYTES - PAGING_NBYTES)
    most = 9 * ROW_NBYTES // FOUR_BIT_ROW_NBYTES
    assert four_bit["largest_batch"] == most == 31
    assert four_bit["batch_ratio_to_f16"] == 31 / 9
    assert plain["largest_context_of_one_row"] == 9 * 128
    assert four_bit["largest_context_of_one_row"] == 63 * 64
    assert (plain["context_limit"], four_bit["context_limit"]) == ("budget", "budget")
    assert four_bit["context_by_bytes"] == 2 * 9 * ROW_NBYTES // FOUR_BIT_ROW_NBYTES * 64 == 63 * 64
    assert found["weights_nbytes"] is None
    assert found["budget_holds"].startswith("persistent bytes of the cache")
    assert four_bit["run"] is None

    assert run(["capacity", *arguments]) == 0
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("int4-g64 ")]
    assert line.split()[:5] == ["int4-g64", "4.516", f"{four_bit['row_nbytes']:,}", "31", "3.44"]
    assert "weights: size not known; give it with --weights SIZE" in text


def test_r31_the_models_context_is_named_as_the_limit(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m", max_position_embeddings=256))
    arguments = [model, "--format", "f16", "--budget", f"{9 * ROW_NBYTES}B", "--context", "128"]
    (row,) = answer(capsys, *arguments)["formats"]
    assert (row["largest_context_of_one_row"], row["context_limit"]) == (256, "model's context")
    assert row["context_by_bytes"] == 9 * 128
    run(["capacity", *arguments])
    assert "the model's context of 256 tokens ends before the budget, which would hold one row of 1,152" in (
        capsys.readouterr().out
    )
    message = one_line_error(capsys, ["capacity", model, "--format", "f16", "--budget", "1GiB", "--context", "257"])
    assert "--context 257 is longer than this llama model's own 256 tokens; use at most --context 256" in message


def test_r31_a_batch_step_and_no_batch_at_all(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    common = [model, "--format", "f16", "--context", "128"]
    (row,) = answer(capsys, *common, "--budget", f"{9 * ROW_NBYTES}B", "--batch-step", "4")["formats"]
    assert (row["largest_batch"], row["batch_limit"], row["next_batch"]) == (8, "batch step", 12)
    (row,) = answer(capsys, *common, "--budget", f"{ROW_NBYTES - 1}B")["formats"]
    assert (row["largest_batch"], row["batch_ratio_to_f16"], row["used_nbytes"]) == (0, None, 0)
    assert row["largest_context_of_one_row"] == 64, "pages hold 64 tokens"


def test_r28_r29_weights_and_workspace_are_beside_or_inside_and_it_says_which(tmp_path, capsys) -> None:
    folder = write_config(tmp_path / "m")
    (folder / "model-00001-of-00002.safetensors").write_bytes(bytes(1000))
    (folder / "model-00002-of-00002.safetensors").write_bytes(bytes(500))
    common = [str(folder), "--format", "int4-g64", "--context", "128", "--budget", "4MiB"]
    beside = answer(capsys, *common)
    inside = answer(capsys, *common, "--include-weights")
    given = answer(capsys, *common, "--include-weights", "--weights", "2MiB")
    assert [found["weights_nbytes"] for found in (beside, inside, given)] == [1500, 1500, 2 * 2**20]
    assert [found["weights_source"] for found in (beside, inside, given)] == ["files", "files", "given"]
    assert inside["budget_holds"] == "weights, persistent bytes of the cache, and the workspace of one decode step"
    kv_format, shape = parse_format("int4-g64"), geometry_of(str(folder))
    for found in (inside, given):
        (row,) = found["formats"]
        ledger = predict_ledger(shape, kv_format, 128, row["largest_batch"])
        assert row["used_nbytes"] == found["weights_nbytes"] + ledger.persistent_nbytes + step_workspace_nbytes(ledger)
        assert row["used_nbytes"] <= 4 * 2**20 < row["next_nbytes"]
    batches = [found["formats"][0]["largest_batch"] for found in (beside, inside, given)]
    assert batches == sorted(batches, reverse=True)
    assert len(set(batches)) == 3


@pytest.mark.slow
def test_r31_run_fills_real_caches_and_confirms_the_formula(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    arguments = ["--format", "kivi-2", "--budget", "8MiB", "--context", "200", "--include-weights", "--weights", "9kB"]
    (row,) = answer(capsys, model, *arguments, "--run")["formats"]
    fits, beyond = row["run"]["at_batch"], row["run"]["beyond"]
    assert row["run"]["confirmed"]
    assert (fits["batch"], fits["fits"], fits["used_nbytes"]) == (row["largest_batch"], True, row["used_nbytes"])
    assert fits["persistent_nbytes"] == fits["predicted_nbytes"] > 0
    assert (beyond["batch"], beyond["fits"]) == (row["next_batch"], False)
    assert fits["transient_nbytes"] > 0
    assert fits["resident_high_water_nbytes"] >= fits["resident_after_nbytes"] > 0


@pytest.mark.slow
def test_r31_where_no_row_fits_the_run_shows_that_one_does_not(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    arguments = ["capacity", model, "--format", "f16", "--context", "128", "--budget", f"{ROW_NBYTES - 1}B", "--run"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert "f16: the run confirms the formula" in captured.out
    (line,) = [line for line in captured.out.splitlines() if "does not fit" in line]
    assert line.split()[:3] == ["f16", "1", "127"]
    assert "f16, 1 rows: 0 of" in captured.err


@pytest.mark.slow
def test_r31_a_formula_that_is_off_by_one_row_is_contradicted_by_the_run(tmp_path, capsys, monkeypatch) -> None:
    module = sys.modules["kvassay.cli.capacity"]
    honest = module.capacity

    def wrong(*arguments):
        found = honest(*arguments)
        batch = found.batch._replace(batch=found.batch.batch + 1, next_batch=found.batch.next_batch + 1)
        return found._replace(batch=batch)

    monkeypatch.setattr(module, "capacity", wrong)
    model = str(write_config(tmp_path / "m"))
    arguments = ["capacity", model, "--format", "f16", "--budget", f"{4 * ROW_NBYTES}B", "--context", "128", "--run"]
    assert run(arguments) == 1
    assert "f16: THE RUN CONTRADICTS THE FORMULA" in capsys.readouterr().out


def test_r31_a_budget_beyond_the_machine_is_refused_before_anything_runs(tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    arguments = ["capacity", model, "--format", "f16", "--budget", "900TiB", "--context", "128"]
    message = one_line_error(capsys, [*arguments, "--run"])
    assert "machine memory: the budget is 989,560,464,998,400 B and this machine can give " in message
    assert "give a smaller --budget, or leave out --run" in message
    assert run(arguments) == 0, "by formula any budget is answered"


def test_r31_a_budget_that_fits_with_a_workspace_that_does_not_is_refused_too(tmp_path, capsys, monkeypatch) -> None:
    from kvassay.measures import capacity_run
    from kvassay.measures.process_memory import AvailableMemory

    monkeypatch.setattr(capacity_run, "available_memory", lambda: AvailableMemory(2 * 2**20, "a test"))
    model = str(write_config(tmp_path / "m"))
    arguments = ["capacity", model, "--format", "f16", "--budget", "1MiB", "--context", "128", "--run"]
    message = one_line_error(capsys, arguments)
    assert "machine memory: filling f16 takes about " in message
    assert "this machine can give 2,097,152 B (a test)" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "f16"], "--budget"),
        (["--budget", "1GiB"], "--format"),
        (["--format", "f16", "--budget", "4"], "--budget '4' has no unit; write 4GiB"),
        (["--format", "f16", "--budget", "4G"], "--budget '4G' has the unit 'G'"),
        (["--format", "f16", "--budget", "1GiB", "--weights", "7gb"], "--weights '7gb' has the unit 'gb'"),
        (["--format", "f16", "--budget", "1GiB", "--include-weights"], "has no weight files here"),
        (["--format", "f16", "--budget", "1GiB", "--batch-step", "0"], "batch-step"),
        (["--format", "kivi-5", "--budget", "1GiB"], "did you mean 'kivi-4'?"),
        (["--format", "kv=int4:group48", "--budget", "1GiB"], "use group 32 or 64"),
        (
            ["--format", "int4-g64,keybias=removed", "--budget", "1MiB", "--run"],
            "run it without keybias= and rope=, which store the same bytes",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys) -> None:
    model = str(write_config(tmp_path / "m"))
    assert message in one_line_error(capsys, ["capacity", model, *arguments])
