"""Verification accepts what the writer wrote and names every tampering (R108), re-hashed or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kvassay.core.contract import Contract, parse_contract
from kvassay.core.digest import sha256_json
from kvassay.core.kv_format import KVFormat
from kvassay.core.ledger import predict_ledger
from kvassay.core.records import Outcome
from kvassay.errors import PackError
from kvassay.judge import judge
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import read_pack
from kvassay.pack.tables import TABLE_COLUMNS
from kvassay.pack.verify import verify_pack
from tests.pack.sample_pack import CONTRACT_TOML, GEOMETRY
from tests.pack.tampering import edit, edit_rows, flip_byte, load, rehash, store

CANDIDATE = "int8-token-head"


def failing(pack: Path, expect_root: str | None = None) -> set[str]:
    verification = verify_pack(pack, expect_root)
    names = [check.name for check in verification.checks]
    assert len(names) == len(set(names)), "a name must mean one check"
    assert verification.passed == (not verification.failed)
    return {check.name for check in verification.failed}


def test_an_untouched_pack_passes_every_check(whole_pack: tuple[Path, PackManifest]) -> None:
    path, manifest = whole_pack
    verification = verify_pack(path, expect_root=manifest.root)
    assert verification.failed == ()
    assert verification.root == manifest.root
    names = {check.name for check in verification.checks}
    assert {
        "root-digest",
        "expected-root",
        "file-set",
        "file-hash: rows/tokens.parquet",
        "file-hash: report.html",
        "files-known",
        "readable",
        "contract-hash",
        "contract-hash: verdicts.json",
        "contract-hash: rows/tokens.parquet",
        "contract-source",
        "row-count: int8-token-head",
        "arm-rows: q4_0",
        "format-digest: kivi-4",
        "ledger: kivi-4",
        "ledger-allocated: kivi-4",
        "rejudge",
    } <= names
    json.dumps(verification.to_json())


def test_the_sample_holds_more_than_one_outcome(whole_pack: tuple[Path, PackManifest]) -> None:
    """Otherwise the tests below would say little of verdicts."""
    outcomes = {verdict.arm: verdict.outcome for verdict in read_pack(whole_pack[0]).verdicts.formats}
    assert outcomes[CANDIDATE] is Outcome.MET
    assert outcomes["kivi-2,recent=32"] is Outcome.BREACHED
    assert Outcome.NOT_MEASURED in outcomes.values()


def test_verification_needs_no_torch(pack: Path) -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing either now fails
from pathlib import Path
from kvassay.pack.verify import verify_pack
verification = verify_pack(Path(sys.argv[1]))
print(verification.passed, [check for check in verification.checks if not check.passed])
"""
    run = subprocess.run([sys.executable, "-c", code, str(pack)], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True []"


def test_verification_writes_nothing(pack: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in pack.rglob("*")}
    verify_pack(pack)
    assert {path: path.stat().st_mtime_ns for path in pack.rglob("*")} == before


# The five tamperings of the first slice, each with and without the manifest re-hashed.


def test_one_flipped_byte(pack: Path, root: str) -> None:
    flip_byte(pack / "rows" / "tokens.parquet", 400)
    assert "file-hash: rows/tokens.parquet" in failing(pack)
    rehash(pack)
    assert failing(pack) & {"readable", "rejudge"}
    assert "expected-root" in failing(pack, root)


@pytest.mark.parametrize(
    "name", ["contract.json", "verdicts.json", "report.html", "charts/frontier.json", "rows/items.parquet"]
)
def test_one_flipped_byte_in_any_file_fails_by_its_name(pack: Path, name: str) -> None:
    path = pack / name
    flip_byte(path, path.stat().st_size // 2)
    assert f"file-hash: {name}" in failing(pack)


def test_an_edited_margin(pack: Path, root: str) -> None:
    """CONTRACT: a margin edited after the run changes the hash and the audit fails."""
    edit(pack, "contract.json", lambda contract: contract["task"]["recall"].update(margin=0.3))
    assert {"file-hash: contract.json", "contract-hash", "contract-source", "rejudge"} <= failing(pack) | {
        "file-hash: contract.json"
    }
    assert failing(pack) & {"file-hash: contract.json", "file-size: contract.json"}
    rehash(pack)
    found = failing(pack)
    assert not {name for name in found if name.startswith("file-")}
    assert "contract-hash" not in found  # the manifest now names the edited contract
    assert {
        "contract-hash: verdicts.json",
        "contract-hash: rows/tokens.parquet",
        "contract-hash: rows/items.parquet",
        "contract-source",
        "rejudge",
    } <= found
    assert "expected-root" in failing(pack, root)


def test_an_edited_margin_with_every_hash_and_source_made_to_fit_is_caught_by_judging_again(pack: Path) -> None:
    margin = CONTRACT_TOML.replace("margin = 0.1", "margin = 0.3")
    contract = parse_contract(margin)
    (pack / "contract.toml").write_text(margin)
    store(pack, "contract.json", contract.to_json())
    edit(pack, "verdicts.json", lambda verdicts: verdicts.update(contract_sha256=contract.sha256))
    for table in TABLE_COLUMNS:
        edit_rows(pack, table, lambda rows: rows, contract.sha256)
    rehash(pack)
    assert failing(pack) == {"rejudge"}


def drop_row(arm: str) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        index = rows.column("arm").to_pylist().index(arm)
        return pa.concat_tables([rows.slice(0, index), rows.slice(index + 1)])

    return change


def test_one_deleted_row(pack: Path, root: str) -> None:
    edit_rows(pack, "tokens", drop_row(CANDIDATE))
    found = failing(pack)
    assert {f"row-count: {CANDIDATE}", "rejudge"} <= found
    assert found & {"file-hash: rows/tokens.parquet", "file-size: rows/tokens.parquet"}
    rehash(pack)
    found = failing(pack)
    assert f"row-count: {CANDIDATE}" not in found
    assert "rejudge" in found
    assert "expected-root" in failing(pack, root)


def swap_outcome(verdicts: dict[str, Any]) -> None:
    verdict = next(verdict for verdict in verdicts["formats"] if verdict["arm"] == "kivi-4")
    verdict["outcome"] = "breached" if verdict["outcome"] == "met" else "met"


def test_a_swapped_verdict(pack: Path, root: str) -> None:
    edit(pack, "verdicts.json", swap_outcome)
    found = failing(pack)
    assert "rejudge" in found
    assert found & {"file-hash: verdicts.json", "file-size: verdicts.json"}
    rehash(pack)
    assert failing(pack) == {"rejudge"}
    sentence = next(check.sentence for check in verify_pack(pack).checks if check.name == "rejudge")
    assert "formats[1].outcome is" in sentence
    assert failing(pack, root) == {"rejudge", "expected-root"}


def test_an_added_file(pack: Path, root: str) -> None:
    (pack / "notes.txt").write_text("trust me")
    assert failing(pack) == {"file-set", "file-unlisted: notes.txt"}
    rehash(pack)
    assert failing(pack) == {"files-known", "file-unknown: notes.txt"}
    assert "expected-root" in failing(pack, root)


# Further tamperings.


def test_a_removed_file(pack: Path) -> None:
    (pack / "plan.json").unlink()
    assert failing(pack) == {"file-set", "file-missing: plan.json", "readable"}
    rehash(pack)
    assert failing(pack) == {"files-known", "file-required: plan.json", "readable"}


def test_an_edited_manifest_fails_its_root(pack: Path) -> None:
    edit(pack, "manifest.json", lambda manifest: manifest.update(created_utc="2020-01-01T00:00:00Z"))
    assert failing(pack) == {"root-digest"}


def test_an_edited_figure_of_a_row(pack: Path) -> None:
    def smaller_kl(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index("kl_nats")
        chosen = pc.equal(rows.column("arm"), "kivi-4")
        halved = pc.if_else(chosen, pc.multiply(rows.column("kl_nats"), 0.5), rows.column("kl_nats"))
        return rows.set_column(index, rows.schema.field(index), halved)

    edit_rows(pack, "tokens", smaller_kl)
    rehash(pack)
    assert failing(pack) == {"rejudge"}


def test_rows_doubled_to_narrow_an_interval(pack: Path) -> None:
    edit_rows(pack, "items", lambda rows: pa.concat_tables([rows, rows]))
    rehash(pack)
    assert failing(pack) == {"rejudge"}


def test_rows_of_an_arm_removed_and_declared_nowhere(pack: Path) -> None:
    edit_rows(pack, "tokens", lambda rows: rows.filter(pc.not_equal(rows.column("arm"), CANDIDATE)))
    rehash(pack)
    found = failing(pack)
    assert {f"arm-rows: {CANDIDATE}", "rejudge"} <= found


def test_rows_of_an_undeclared_arm(pack: Path) -> None:
    edit(pack, "arms.json", lambda arms: arms.pop(0))
    rehash(pack)
    found = failing(pack)
    assert {f"arm-undeclared: {CANDIDATE}", f"arm-rows: {CANDIDATE}", f"ledger: {CANDIDATE}"} <= found


def test_an_arm_that_claims_another_format(pack: Path) -> None:
    edit(pack, "arms.json", lambda arms: arms[1]["format"].update(recent=999))
    rehash(pack)
    assert "format-digest: kivi-4" in failing(pack)
    edit(pack, "arms.json", lambda arms: arms[1]["format"].update(recent="128"))
    rehash(pack)
    assert "format-digest: kivi-4" in failing(pack)  # reads as the same format, and says it in another form
    edit(pack, "arms.json", lambda arms: arms[1].update(format={"keys": 1}))
    rehash(pack)
    assert "format-digest: kivi-4" in failing(pack)


HOSTILE_SPECS: dict[str, dict[str, Any]] = {
    "no bits": {"num_bits": 0},
    "negative bits": {"num_bits": -1},
    "more bits than the element": {"num_bits": 9},
    "bits beyond every element": {"num_bits": 2**53 - 1},
    "unknown element": {"code_dtype": "float7"},
    "unknown method": {"method": "magic"},
    "method of another layout": {"method": "q8_0"},
    "unknown granularity": {"granularity": "galaxy"},
    "granularity that the method lacks": {"granularity": "tile", "group_size": None, "block_tokens": 128},
    "group of nothing": {"group_size": 0},
    "huge group": {"group_size": 2**53 - 1},
    "scale without a group": {"granularity": "none", "group_size": None},
    "no scale": {"scale_dtype": None},
    "unknown scale": {"scale_dtype": "int8"},
    "options of nobody": {"options": [["a", 1], ["b", 2]]},
    "number as text": {"num_bits": "many"},
}


@pytest.mark.parametrize("side", ["keys", "values"])
@pytest.mark.parametrize("kind", HOSTILE_SPECS)
def test_a_spec_that_no_run_writes_is_a_failed_check_and_no_crash(pack: Path, kind: str, side: str) -> None:
    edit(pack, "arms.json", lambda arms: arms[1]["format"][side].update(HOSTILE_SPECS[kind]))
    rehash(pack)
    assert "format-digest: kivi-4" in failing(pack)


@pytest.mark.parametrize(
    "change",
    [
        {"kv_heads": 2**40},
        {"head_dim": 2**52 + 1, "value_dim": 2**52 + 1},
        {"head_dim": 0},
        {"sliding_window": -1},
        {"head_dim": 33},
    ],
)
def test_a_geometry_that_no_model_has_is_a_failed_check_and_ends(pack: Path, change: dict[str, int]) -> None:
    edit(pack, "subject.json", lambda subject: subject["geometry"]["layers"][0].update(change))
    rehash(pack)
    assert failing(pack) & {"geometry", "ledger: kivi-4"}


def test_a_fault_of_a_check_is_a_failed_check(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("whatever")

    monkeypatch.setattr("kvassay.pack.agreement.rows_per_arm", fault)
    assert {"checkable: row-counts", "checkable: arms"} <= failing(pack)


@pytest.mark.parametrize(("basis", "name"), [("computed", "ledger: kivi-4"), ("allocated", "ledger-allocated: kivi-4")])
def test_a_ledger_that_hides_bytes(pack: Path, basis: str, name: str) -> None:
    def smaller(ledgers: dict[str, Any]) -> None:
        ledger = ledgers["kivi-4"][basis]
        saved = ledger["keys_nbytes"].pop("scales")
        ledger["persistent_nbytes"] -= saved
        ledger["persistent_nbytes_per_token"] = ledger["persistent_nbytes"] / (ledger["tokens"] * ledger["batch"])
        ledger["ratio_to_float16"] = ledger["persistent_nbytes"] / ledger["float16_nbytes"]

    edit(pack, "ledgers.json", smaller)
    rehash(pack)
    assert name in failing(pack)


def test_a_geometry_that_does_not_give_the_ledgers(pack: Path) -> None:
    edit(pack, "subject.json", lambda subject: subject["geometry"]["layers"].pop())
    rehash(pack)
    assert {"ledger: kivi-4", "ledger-allocated: kivi-4"} <= failing(pack)
    edit(pack, "subject.json", lambda subject: subject.pop("geometry"))
    rehash(pack)
    assert "geometry" in failing(pack)


def change_document(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda subject: change(subject["corpus"]["documents"][3])


SUBJECTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no corpus": lambda subject: subject.pop("corpus"),
    "corpus of text": lambda subject: subject.update(corpus="hansard"),
    "no documents": lambda subject: subject["corpus"].update(documents=[]),
    "one document missing": lambda subject: subject["corpus"]["documents"].pop(),
    "one document more": lambda subject: subject["corpus"]["documents"].append(
        {**subject["corpus"]["documents"][0], "id": "doc-99"}
    ),
    "another length": change_document(lambda document: document.update(tokens=201)),
    "other tokens": change_document(lambda document: document.update(scored_sha256="ab" * 32)),
    "no digest": change_document(lambda document: document.pop("scored_sha256")),
    "another slice": change_document(lambda document: document.update(slice="code")),
}


@pytest.mark.parametrize("kind", SUBJECTS)
def test_rows_are_of_the_documents_that_the_subject_lists(pack: Path, kind: str) -> None:
    edit(pack, "subject.json", SUBJECTS[kind])
    rehash(pack)
    assert failing(pack) == {"documents"}


@pytest.mark.parametrize(("tokens", "batch"), [(4096, 1), (199, 1), (200, 2)])
def test_ledgers_are_of_the_length_that_was_measured(pack: Path, tokens: int, batch: int) -> None:
    """A long cache hides its windows and part-filled pages: bytes a token depend on the length."""
    ledgers = load(pack, "ledgers.json")
    for arm in load(pack, "arms.json"):
        ledger = predict_ledger(GEOMETRY, KVFormat.model_validate(arm["format"]), tokens, batch)
        ledgers[arm["name"]] = {"computed": ledger.to_json(), "allocated": None}
    store(pack, "ledgers.json", ledgers)
    rehash(pack)
    assert failing(pack) == {f"ledger-tokens: {arm['name']}" for arm in load(pack, "arms.json")}


def test_verdicts_written_in_other_bytes(pack: Path) -> None:
    (pack / "verdicts.json").write_text(json.dumps(load(pack, "verdicts.json")))
    rehash(pack)
    assert failing(pack) == {"rejudge"}


def test_a_difference_of_versions_is_named(pack: Path) -> None:
    edit(pack, "verdicts.json", swap_outcome)
    edit(pack, "manifest.json", lambda manifest: manifest.update(kvassay_version="0.0.9"))
    rehash(pack)
    (fault,) = verify_pack(pack).failed
    assert "the pack was written by kvassay 0.0.9, judged again by " in fault.sentence


def test_a_contract_with_a_field_left_to_its_default(pack: Path) -> None:
    """A later version could have another default; the effective contract must say it all."""
    edit(pack, "contract.json", lambda contract: contract["inference"].pop("seed"))
    rehash(pack)
    assert "readable" in failing(pack)


@pytest.mark.parametrize("kind", ["link", "link to the same bytes", "pipe", "linked folder"])
def test_a_file_that_is_no_regular_file(pack: Path, tmp_path: Path, kind: str) -> None:
    path = pack / "report.html"
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "linked folder":
        (pack / "charts").rename(tmp_path / "charts")
        (pack / "charts").symlink_to(tmp_path / "charts")
    else:
        target = tmp_path / "outside"
        target.write_bytes(path.read_bytes() if kind == "link to the same bytes" else b"outside")
        path.unlink()
        path.symlink_to(target)
    found = failing(pack)
    if kind == "linked folder":
        assert found == {"file-set", "file-missing: charts/frontier.json", "file-unlisted: charts"}
    else:
        assert found == {"file-set", "file-kind: report.html"}


def test_names_cannot_steer_a_terminal(pack: Path) -> None:
    (pack / "a\x1b[2Jb\nc\u202e").write_text("x")
    names = failing(pack)
    assert "file-unlisted: a\\x1b[2Jb\\nc\\u202e" in names
    edit_rows(
        pack,
        "tokens",
        lambda rows: pa.concat_tables(
            [rows, rows.slice(0, 1).set_column(0, rows.schema.field(0), pa.array(["\x1b[31mevil"]))]
        ),
    )
    assert "arm-undeclared: \\x1b[31mevil" in failing(pack)


# What an unsigned pack cannot show.


def test_a_pack_forged_with_this_library_passes_unless_its_root_is_known(pack: Path, root: str) -> None:
    """Rows invented, judged and hashed anew agree with themselves. Only the root printed by the run tells."""

    def perfect(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index("kl_nats")
        small = pc.if_else(pc.equal(rows.column("arm"), "kivi-4"), 1e-6, rows.column("kl_nats"))
        return rows.set_column(index, rows.schema.field(index), small)

    edit_rows(pack, "tokens", perfect)
    content = read_pack(pack)
    computed = {arm: pair.computed for arm, pair in content.ledgers.items()}
    forged = judge(content.contract, content.arms, computed, content.tables.tokens, content.tables.items)
    store(pack, "verdicts.json", forged.model_dump(mode="json"))
    rehash(pack)
    assert failing(pack) == set()
    assert failing(pack, root) == {"expected-root"}


def test_an_edited_report_passes_unless_the_root_is_known(pack: Path, root: str) -> None:
    (pack / "report.html").write_text("<!doctype html>everything is fine")
    assert failing(pack) & {"file-hash: report.html", "file-size: report.html"}
    rehash(pack)
    assert failing(pack) == set()
    assert failing(pack, root) == {"expected-root"}


def comment(pack: Path) -> None:
    path = pack / "contract.toml"
    path.write_text("# another comment\n" + path.read_text())


def other_reverse_kl(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("reverse_kl_nats")
    return rows.set_column(place, rows.schema.field(place), pc.multiply(rows.column(place), 2.0))


BOUND_BY_HASHES_ALONE: dict[str, Callable[[Path], None]] = {
    "created_utc": lambda pack: edit(pack, "manifest.json", lambda m: m.update(created_utc="2020-01-01T00:00:00Z")),
    "kvassay_version": lambda pack: edit(pack, "manifest.json", lambda m: m.update(kvassay_version="9")),
    "comments": comment,
    "plan": lambda pack: store(pack, "plan.json", {}),
    "environment": lambda pack: store(pack, "environment.json", {"cpu": "another"}),
    "model": lambda pack: edit(pack, "subject.json", lambda subject: subject.update(model="another")),
    "document history": lambda pack: edit(
        pack, "subject.json", lambda subject: subject["corpus"]["documents"][0].update(sha256="11" * 32)
    ),
    "max_context": lambda pack: edit(pack, "subject.json", lambda s: s["geometry"].update(max_context=None)),
    "model_type": lambda pack: edit(pack, "subject.json", lambda s: s["geometry"].update(model_type="x")),
    "scale_source": lambda pack: edit(pack, "arms.json", lambda arms: arms[0].update(scale_source="calibrated")),
    "clipped_values": lambda pack: edit(pack, "arms.json", lambda arms: arms[0].update(clipped_values=5)),
    "encoded_values": lambda pack: edit(pack, "arms.json", lambda arms: arms[0].update(encoded_values=5)),
    "assumptions": lambda pack: edit(
        pack, "ledgers.json", lambda ledgers: ledgers["kivi-4"]["computed"].update(assumptions=["none"])
    ),
    "allocated": lambda pack: edit(pack, "ledgers.json", lambda ledgers: ledgers["kivi-4"].update(allocated=None)),
    "reverse_kl_nats": lambda pack: edit_rows(pack, "tokens", other_reverse_kl),
}


@pytest.mark.parametrize("what", BOUND_BY_HASHES_ALONE)
def test_what_the_specification_says_is_bound_by_hashes_alone(pack: Path, root: str, what: str) -> None:
    """An honest list: docs/spec/evidence-pack.md names each, and the root digest finds each."""
    BOUND_BY_HASHES_ALONE[what](pack)
    rehash(pack)
    assert failing(pack) == set()
    assert failing(pack, root) == {"expected-root"}


def test_a_wrong_expected_root_fails_an_untouched_pack(pack: Path) -> None:
    assert failing(pack, "0" * 64) == {"expected-root"}


# A manifest that cannot be read at all is an error, not a failed check.


def test_no_manifest_is_an_error(pack: Path, tmp_path: Path) -> None:
    for path, fault in ((tmp_path / "nowhere", "does not exist"), (pack / "plan.json", "is not a folder")):
        with pytest.raises(PackError, match=fault):
            verify_pack(path)
    (pack / "manifest.json").unlink()
    with pytest.raises(PackError, match=r"manifest\.json: missing"):
        verify_pack(pack)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "parent path": (lambda m: m["files"].update({"../secret": m["files"]["plan.json"]}), "no file name of a pack"),
    "absolute path": (lambda m: m["files"].update({"/etc/passwd": m["files"]["plan.json"]}), "no file name of a pack"),
    "hidden path": (lambda m: m["files"].update({"rows/.x": m["files"]["plan.json"]}), "no file name of a pack"),
    "backslash": (lambda m: m["files"].update({"..\\x": m["files"]["plan.json"]}), "no file name of a pack"),
    "NUL": (lambda m: m["files"].update({"a\0b": m["files"]["plan.json"]}), "no file name of a pack"),
    "itself": (lambda m: m["files"].update({"manifest.json": m["files"]["plan.json"]}), "manifest's own name"),
    "case": (lambda m: m["files"].update({"PLAN.json": m["files"]["plan.json"]}), "differ in case only"),
    "huge size": (lambda m: m["files"]["plan.json"].update(nbytes=2**50), "less than or equal"),
    "negative size": (lambda m: m["files"]["plan.json"].update(nbytes=-1), "greater than or equal"),
    "size as text": (lambda m: m["files"]["plan.json"].update(nbytes="15"), "valid integer"),
    "no hash": (lambda m: m["files"]["plan.json"].pop("sha256"), "files.plan.json.sha256"),
    "short hash": (lambda m: m["files"]["plan.json"].update(sha256="ab"), "files.plan.json.sha256"),
    "many files": (
        lambda m: m["files"].update({f"charts/{index}.json": m["files"]["plan.json"] for index in range(10_001)}),
        "at most 10000",
    ),
    "unknown field": (lambda m: m.update(signed=True), "signed"),
    "other schema": (lambda m: m.update(schema="kvassay.pack/2"), "schema is 'kvassay.pack/2', expected"),
    "no schema": (lambda m: m.pop("schema"), "is this a result folder"),
    "no counts": (lambda m: m.pop("row_counts"), "row_counts"),
    "count as text": (lambda m: m["row_counts"]["tokens"].update(x="1"), "valid integer"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_manifest_is_refused_in_one_line(pack: Path, kind: str) -> None:
    change, message = HOSTILE[kind]
    edit(pack, "manifest.json", change)
    with pytest.raises(PackError) as caught:
        verify_pack(pack)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "text", ['{"schema": "kvassay.pack/1", "schema": "kvassay.pack/1"}', '{"root": NaN}', "[]", "", "\0"]
)
def test_a_manifest_that_is_no_plain_object_is_refused(pack: Path, text: str) -> None:
    (pack / "manifest.json").write_text(text)
    with pytest.raises(PackError, match=r"^manifest\.json: "):
        verify_pack(pack)


def test_a_huge_manifest_is_not_read(pack: Path) -> None:
    with (pack / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no room
    with pytest.raises(PackError, match="at most"):
        verify_pack(pack)


def test_a_huge_sparse_file_is_not_hashed(pack: Path) -> None:
    with (pack / "report.html").open("r+b") as file:
        file.truncate(1 << 40)
    assert failing(pack) == {"file-size: report.html"}


def test_a_folder_of_very_many_files_is_refused(pack: Path) -> None:
    for index in range(10_020):
        (pack / f"x{index}").touch()
    with pytest.raises(PackError, match="more than 10000 files"):
        verify_pack(pack)


def test_a_very_deep_folder_is_refused(pack: Path) -> None:
    (pack / "/".join("abcdefghijkl")).mkdir(parents=True)
    with pytest.raises(PackError, match="levels deep"):
        verify_pack(pack)


def test_the_contract_hash_is_that_of_the_file(pack: Path) -> None:
    contract = Contract.model_validate(load(pack, "contract.json"))
    assert sha256_json(load(pack, "contract.json")) == contract.sha256 == load(pack, "manifest.json")["contract_sha256"]
