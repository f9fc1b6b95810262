"""Writing a pack and reading it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvassay.core.contract import parse_contract
from kvassay.core.records import Verdicts
from kvassay.errors import PackError
from kvassay.pack import strict_json
from kvassay.pack.layout import REQUIRED_FILES, PackManifest
from kvassay.pack.reader import read_pack, read_partial
from kvassay.pack.writer import PackWriter
from tests.pack.sample_pack import (
    CONTRACT_TOML,
    GEOMETRY,
    MEAN_KL_NATS,
    fill,
    sample,
    token_rows,
    write_rows,
    write_sample,
)
from tests.pack.tampering import edit, load, store


def open_pack(out: Path) -> PackWriter:
    return PackWriter(out, parse_contract(CONTRACT_TOML), CONTRACT_TOML)


def test_what_is_written_is_read(whole_pack: tuple[Path, PackManifest]) -> None:
    path, manifest = whole_pack
    contract, arms, ledgers = sample()
    content = read_pack(path)
    assert content.manifest == manifest
    assert content.contract == contract
    assert content.contract_toml == CONTRACT_TOML
    assert content.arms == arms
    assert content.ledgers == ledgers
    assert content.plan == {"documents": 20, "power": 0.83}
    assert content.subject["geometry"] == GEOMETRY.model_dump(mode="json")
    assert isinstance(content.verdicts, Verdicts)
    assert content.tables.tokens.num_rows == 4 * 20 * 6
    assert content.tables.items.num_rows == 4 * 40
    assert content.tables.tensors.num_rows == 4 * 18
    assert content.tables.tensors.column("score_rmse").null_count == 4
    assert manifest.row_counts == {
        "tokens": dict.fromkeys(MEAN_KL_NATS, 120),
        "items": dict.fromkeys(MEAN_KL_NATS, 40),
        "tensors": dict.fromkeys(MEAN_KL_NATS, 18),
        "generations": {},
        "answers": {},
    }
    assert set(manifest.files) == {*REQUIRED_FILES, "report.html", "charts/frontier.json"}
    assert set(content.table_contracts.values()) == {contract.sha256}


def test_the_same_run_gives_the_same_files(whole_pack: tuple[Path, PackManifest], tmp_path: Path) -> None:
    """Parquet included: same rows, same bytes. Only the manifest's time may differ."""
    again = write_sample(tmp_path / "again")
    assert again.files == whole_pack[1].files


def test_the_report_can_read_the_pack_before_its_manifest_exists(tmp_path: Path) -> None:
    with open_pack(tmp_path / "pack") as pack:
        fill(pack)
        content = pack.content()
        assert content.manifest is None
        assert content.tables.tokens.num_rows == 480
        assert not (tmp_path / "pack").exists()
        pack.commit()
    written = read_pack(tmp_path / "pack")
    assert written.verdicts == content.verdicts
    with pytest.raises(PackError, match="is a finished pack"):
        read_partial(tmp_path / "pack")


def test_an_existing_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    """R107."""
    out = tmp_path / "pack"
    out.mkdir()
    with pytest.raises(PackError, match="already exists"):
        open_pack(out)
    assert os.listdir(tmp_path) == ["pack"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def run() -> None:
        with open_pack(tmp_path / "pack") as pack:
            pack.append("tokens", token_rows("kivi-4", 0))
            raise error

    with pytest.raises(error):
        run()
    assert os.listdir(tmp_path) == []


def test_an_incomplete_pack_is_not_put_in_place(tmp_path: Path) -> None:
    with open_pack(tmp_path / "pack") as pack:
        write_rows(pack)
        with pytest.raises(PackError, match=r"verdicts\.json.* was never written"):
            pack.commit()
    assert os.listdir(tmp_path) == []


def test_rows_cannot_be_added_to_what_was_judged(tmp_path: Path) -> None:
    with open_pack(tmp_path / "pack") as pack:
        pack.append("tokens", token_rows("kivi-4", 0))
        assert pack.tables().tokens.num_rows == 6
        with pytest.raises(PackError, match="read back already"):
            pack.append("tokens", token_rows("kivi-4", 1))


def test_absent_is_null_and_never_nan(tmp_path: Path) -> None:
    with open_pack(tmp_path / "pack") as pack, pytest.raises(PackError, match=r"plan\.json: .*nan"):
        pack.write_plan({"power": float("nan")})


WRITES_SLOWLY = """
import sys, time
from pathlib import Path
from tests.pack.sample_pack import CONTRACT_TOML, parse_contract, write_rows
from kvassay.pack.writer import PackWriter
with PackWriter(Path(sys.argv[1]), parse_contract(CONTRACT_TOML), CONTRACT_TOML) as pack:
    while True:
        write_rows(pack)
        print("wrote", flush=True)
"""


def test_kill_9_while_writing_leaves_nothing_at_the_path(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES_SLOWLY, str(tmp_path / "pack")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "wrote\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "pack").exists()
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".pack.partial-")] == []
    write_sample(tmp_path / "pack")  # what is left over is in nobody's way


def set_in(*path: Any, value: Any = ...) -> Callable[[Any], None]:
    """An edit that sets, or without a value removes, the member at a path."""

    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        if value is ...:
            del content[path[-1]]
        else:
            content[path[-1]] = value

    return change


MALFORMED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "negative margin": ("contract.json", set_in("task", "recall", "margin", value=-0.1), "task.recall.margin"),
    "unknown contract key": ("contract.json", set_in("task", "recall", "margn", value=1), "task.recall.margn"),
    "contract default left out": ("contract.json", set_in("inference", "alpha"), "incomplete"),
    "unknown format": ("contract.json", set_in("candidates", "order", value=["int9"]), "int9"),
    "outcome that is none": ("verdicts.json", set_in("outcome", value="fine"), "outcome"),
    "verdict field missing": ("verdicts.json", set_in("formats", 0, "reason"), "formats.0.reason"),
    "number as text": ("verdicts.json", set_in("exit_code", value="0"), "exit_code"),
    "role that is none": ("arms.json", set_in(0, "role", value="star"), "0.role"),
    "arm twice": ("arms.json", set_in(1, "name", value="int8-token-head"), "stands twice"),
    "ledger field missing": ("ledgers.json", set_in("kivi-4", "computed", "tokens"), "kivi-4.computed"),
    "ledger without a basis": ("ledgers.json", set_in("kivi-4", "allocated"), "'computed' and 'allocated'"),
    "ledger of no tokens": ("ledgers.json", set_in("kivi-4", "computed", "tokens", value=0), "divide"),
    "ledger sum wrong": ("ledgers.json", set_in("kivi-4", "computed", "persistent_nbytes", value=1), "do not follow"),
    "ledger is a list": ("ledgers.json", set_in("kivi-4", "computed", value=[]), "expected an object"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_file_is_named_with_its_fault(pack: Path, kind: str) -> None:
    name, change, message = MALFORMED[kind]
    edit(pack, name, change)
    with pytest.raises(PackError) as caught:
        read_pack(pack)
    assert str(caught.value).startswith(f"{name}: ")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [name for name in REQUIRED_FILES if name.endswith(".json")])
@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": 1, "a": 2}', "3", "[[1]]", "null"])
def test_a_file_that_is_no_json_of_its_kind_is_refused(pack: Path, name: str, text: str) -> None:
    (pack / name).write_text(text)
    with pytest.raises(PackError, match=f"^{name}: "):
        read_pack(pack)


@pytest.mark.parametrize("name", REQUIRED_FILES)
def test_a_missing_or_linked_file_is_refused(pack: Path, tmp_path: Path, name: str) -> None:
    moved = tmp_path / "moved"
    (pack / name).rename(moved)
    with pytest.raises(PackError, match=f"^{name}: missing"):
        read_pack(pack)
    (pack / name).symlink_to(moved)
    with pytest.raises(PackError, match=f"^{name}: a symbolic link"):
        read_pack(pack)


def test_a_pipe_is_refused_without_waiting_for_a_writer(pack: Path) -> None:
    (pack / "plan.json").unlink()
    os.mkfifo(pack / "plan.json")
    with pytest.raises(PackError, match=r"^plan\.json: not a regular file"):
        read_pack(pack)


def test_a_linked_rows_folder_is_refused(pack: Path, tmp_path: Path) -> None:
    (pack / "rows").rename(tmp_path / "rows")
    (pack / "rows").symlink_to(tmp_path / "rows")
    with pytest.raises(PackError, match="reached through a symbolic link"):
        read_pack(pack)


def test_a_file_beyond_its_cap_is_refused_unread(pack: Path) -> None:
    with (pack / "plan.json").open("r+b") as file:
        file.truncate(strict_json.MAX_JSON_NBYTES + 1)
    with pytest.raises(PackError, match=r"^plan\.json: .* at most"):
        read_pack(pack)


def test_reading_checks_shape_and_not_agreement(pack: Path) -> None:
    """A pack with other figures is readable; verification is what refuses it."""
    plan = load(pack, "plan.json")
    store(pack, "plan.json", plan | {"power": 0.5})
    assert read_pack(pack).plan["power"] == 0.5


@pytest.mark.parametrize(
    ("change", "error"),
    [({"seed": 2**60}, Exception), ({}, PackError), ({}, KeyboardInterrupt)],
)
def test_a_constructor_that_fails_leaves_nothing(tmp_path: Path, monkeypatch, change, error) -> None:
    """Whatever fails: the contract's hash, a row file, an interrupt."""
    contract = parse_contract(CONTRACT_TOML)
    if change:
        inference = contract.inference.model_copy(update=change)
        contract = contract.model_copy(update={"inference": inference})
    else:

        def fail(*_: object) -> None:
            raise error("x")

        monkeypatch.setattr("kvassay.pack.writer.RowWriter", fail)
    with pytest.raises(error):
        PackWriter(tmp_path / "new" / "out", contract, CONTRACT_TOML)
    assert list(tmp_path.iterdir()) == []
