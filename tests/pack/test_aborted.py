"""Aborted runs: kept where rows were measured, checked like a pack, never judged, and named by later runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.errors import PackError
from kvassay.pack import layout
from kvassay.pack.aborted import AbortedRun, read_earlier, verify_aborted
from kvassay.pack.layout import ABORTED_SCHEMA, EarlierRun
from kvassay.pack.manifest import root_digest
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from kvassay.pack.writer import PackWriter
from tests.pack.sample_pack import CONTRACT_TOML, fill, token_rows, write_sample
from tests.pack.tampering import edit, rehash

RECORD = AbortedRun(
    model="sample",
    weights_sha256=None,
    last_stage="documents",
    units_done={"documents": 3, "items": 0},
    units_planned={"documents": 20, "items": 40},
    reason="KeyboardInterrupt",
    started_utc="2026-01-31T12:00:00Z",
    ended_utc="2026-01-31T12:05:00Z",
)
CONTRACT = parse_contract(CONTRACT_TOML)


def write_aborted(out: Path, after: tuple[EarlierRun, ...] = (), whole: bool = False) -> str:
    """An aborted pack of three documents, or of a run that failed after its verdicts; returns its root."""
    with PackWriter(out, CONTRACT, CONTRACT_TOML, after) as pack:
        if whole:
            fill(pack)
        else:
            pack.write_plan({"documents": 20})
            for document in range(3):
                pack.append("tokens", token_rows("kivi-4", document))
        manifest = pack.abort(RECORD.model_dump(mode="json"))
        assert manifest is not None
        return manifest.root


@pytest.fixture
def aborted(tmp_path: Path) -> Path:
    write_aborted(tmp_path / "aborted")
    return tmp_path / "aborted"


def failed(folder: Path, root: str | None = None) -> list[str]:
    return [check.name for check in verify_aborted(folder, root).failed]


def test_an_aborted_pack_holds_the_rows_and_no_verdict(tmp_path: Path, aborted: Path) -> None:
    found = {str(path.relative_to(aborted)) for path in aborted.rglob("*") if path.is_file()}
    assert found == {"manifest.json", *layout.ABORTED_FILES}
    manifest = json.loads((aborted / "manifest.json").read_text())
    assert manifest["schema"] == ABORTED_SCHEMA
    assert manifest["row_counts"] == {
        "tokens": {"kivi-4": 18},
        "items": {},
        "tensors": {},
        "generations": {},
        "answers": {},
    }
    assert os.listdir(tmp_path) == ["aborted"]


@pytest.mark.parametrize("json_option", [[], ["--json"]])
def test_verify_says_aborted_and_why_and_is_neither_0_nor_1(aborted: Path, capsys, json_option) -> None:
    assert run(["verify", str(aborted), *json_option]) == 3
    printed = capsys.readouterr().out
    sentence = "the run was aborted in stage documents after 3 of 20 documents, 0 of 40 items: KeyboardInterrupt"
    assert sentence in printed
    if json_option:
        assert json.loads(printed)["passed"] is False
    else:
        assert printed.splitlines()[-1] == f"ABORTED, and nothing was judged: {sentence}"


def test_a_run_that_failed_after_its_verdicts_keeps_none_of_them(tmp_path: Path) -> None:
    write_aborted(tmp_path / "late", whole=True)
    assert failed(tmp_path / "late") == ["aborted"]
    assert not (tmp_path / "late" / "verdicts.json").exists()
    assert not list((tmp_path / "late").rglob("*.html"))


def test_no_reader_of_packs_takes_it(aborted: Path, capsys) -> None:
    with pytest.raises(PackError, match="is an aborted run, which was not judged"):
        read_pack(aborted)
    with pytest.raises(PackError, match="schema"):
        verify_pack(aborted)
    for command in (["judge", str(aborted)], ["compare", str(aborted), str(aborted)]):
        assert run(command) == 2
        assert "is an aborted run" in capsys.readouterr().err


def test_verdicts_put_into_it_later_are_found(aborted: Path) -> None:
    (aborted / "verdicts.json").write_text("{}\n")
    assert failed(aborted) == ["file-set", "file-unlisted: verdicts.json", "aborted"]
    rehash(aborted)
    assert failed(aborted) == ["files-known", "aborted"]
    assert run(["verify", str(aborted)]) == 1


@pytest.mark.parametrize(
    ("name", "change", "check"),
    [
        ("contract.json", lambda value: value["fidelity"]["kl_mean"].update(max=0.5), "contract-hash"),
        ("aborted.json", lambda value: value.update(reason=None), "readable"),
        ("aborted.json", lambda value: value.pop("model"), "readable"),
    ],
)
def test_what_disagrees_is_found_without_the_root(aborted: Path, name, change, check) -> None:
    edit(aborted, name, change)
    rehash(aborted)
    assert check in failed(aborted)


def test_rows_that_the_manifest_does_not_count_are_found(aborted: Path) -> None:
    def change(manifest: dict) -> None:
        manifest["row_counts"]["tokens"]["kivi-4"] = 17
        manifest["root"] = root_digest(manifest)

    edit(aborted, "manifest.json", change)
    assert failed(aborted) == ["row-counts", "aborted"]


def test_without_rows_nothing_is_kept(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "out", CONTRACT, CONTRACT_TOML) as pack:
        assert pack.abort(RECORD.model_dump(mode="json")) is None
    assert os.listdir(tmp_path) == []


def test_rows_that_cannot_be_finished_leave_nothing(tmp_path: Path, monkeypatch) -> None:
    with PackWriter(tmp_path / "out", CONTRACT, CONTRACT_TOML) as pack:
        pack.append("tokens", token_rows("kivi-4", 0))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("kvassay.pack.row_writer.RowWriter.close", full)
        assert pack.abort(RECORD.model_dump(mode="json")) is None
    assert os.listdir(tmp_path) == []


def test_a_whole_pack_is_not_aborted_afterwards(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "out", CONTRACT, CONTRACT_TOML) as pack:
        fill(pack)
        root = pack.commit().root
        assert pack.abort(RECORD.model_dump(mode="json")) is None
    assert verify_pack(tmp_path / "out", root).passed


def test_later_runs_name_earlier_ones_with_those_that_these_name(tmp_path: Path) -> None:
    first = write_aborted(tmp_path / "first")
    second = write_aborted(tmp_path / "second", read_earlier([tmp_path / "first"], CONTRACT.sha256))
    found = read_earlier([tmp_path / "second", tmp_path / "first"], CONTRACT.sha256)
    assert [run.root for run in found] == [first, second]
    with PackWriter(tmp_path / "third", CONTRACT, CONTRACT_TOML, found) as pack:
        fill(pack)
        manifest = pack.commit()
    assert [run.root for run in manifest.after] == [first, second]
    sentences = {check.name: check.sentence for check in verify_pack(tmp_path / "third").checks}
    assert "names 2 earlier runs under its contract, 2 of them aborted" in sentences["earlier-runs"]
    edit(tmp_path / "third", "manifest.json", lambda value: value.update(after=[]))
    assert [check.name for check in verify_pack(tmp_path / "third").failed] == ["root-digest"]


def test_earlier_runs_must_be_whole_and_of_this_contract(tmp_path: Path, aborted: Path) -> None:
    with pytest.raises(PackError, match=r"is a run under contract .*, this one is under 000000000000"):
        read_earlier([aborted], "0" * 64)
    write_sample(tmp_path / "whole")
    (run_before,) = read_earlier([tmp_path / "whole"], CONTRACT.sha256)
    assert not run_before.aborted
    (aborted / "plan.json").write_text("{}\n")
    with pytest.raises(PackError, match=r"is not what its run wrote: plan\.json"):
        read_earlier([aborted], CONTRACT.sha256)
    with pytest.raises(PackError, match="does not exist"):
        read_earlier([tmp_path / "nowhere"], CONTRACT.sha256)


INTERRUPTED = """
import sys, time
from pathlib import Path
from kvassay.cli.ending import end_process
from kvassay.errors import KEPT
from kvassay.pack.writer import PackWriter
from tests.pack.sample_pack import CONTRACT_TOML, token_rows
from tests.pack.test_aborted import CONTRACT, RECORD
def command():
    with PackWriter(Path(sys.argv[1]), CONTRACT, CONTRACT_TOML) as pack:
        pack.write_plan({})
        pack.append("tokens", token_rows("kivi-4", 0))
        try:
            print("measuring", flush=True)
            time.sleep(60)
        except BaseException as error:
            if pack.abort(RECORD.model_dump(mode="json")) is not None:
                error.add_note(f"{KEPT}: {pack.out}")
            raise
    return 0
end_process(command)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_an_aborted_pack_and_says_so(tmp_path: Path, number) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "measuring\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert error.endswith(f"; what was measured is kept as an aborted pack: {out}\n")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["out"]
    assert failed(out) == ["aborted"]
    shutil.rmtree(out)
