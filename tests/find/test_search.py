"""The whole search on a tiny model, under contracts whose answer is known by how they are made."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.core.records import Outcome, Role
from kvassay.errors import ContractError, KernelError, SearchError
from kvassay.find import candidates, search
from kvassay.find.pilot import PilotSize
from kvassay.find.records import Found
from kvassay.find.search import SearchOptions, run_search
from kvassay.find.sensitivity import Sensitivities
from kvassay.kernels.native import native_state
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack

CONTRACT = """
schema = "kvassay.contract/1"
name = "tiny"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 48
scored_tokens = 24
[candidates]
order = ["{order}"]
[inference]
pilot_documents = 2
bootstrap_replicates = 500
[controls]
canary = "{canary}"
require_canary_fail = {require}
[fidelity.kl_mean]
max = {limit}
"""
FEW = ("int8-token-head", "q4_0", "int4-g32", "int2-g32")
OPTIONS = SearchOptions(ladder="kv=int{bits}:group32", widths=(2, 4, 8), pilot=PilotSize(2, 32, 16), most_judged=4)


@pytest.fixture(autouse=True)
def few(monkeypatch) -> None:
    monkeypatch.setattr(candidates, "UNIFORM", FEW)
    monkeypatch.setattr(candidates, "BUDGET_STEP_BITS", 1.0)


def toml(texts: Path, limit: float, canary: str = "kv=int1:token-head", require: bool = True, order="exl3-8") -> str:
    required = "true" if require else "false"
    return CONTRACT.format(texts=texts, limit=limit, canary=canary, require=required, order=order)


@pytest.fixture(scope="module")
def loose(tiny_folder, texts, tmp_path_factory):
    """A bound so wide that whatever is judged meets it; the canary is not asked to fail."""
    folder = tmp_path_factory.mktemp("loose")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "UNIFORM", FEW)
        patch.setattr(candidates, "BUDGET_STEP_BITS", 1.0)
        text = toml(texts, limit=1000.0, require=False)
        options = OPTIONS._replace(sensitivities=folder / "kl.json", formats=("kv=int8:tensor",))
        found = run_search(str(tiny_folder), text, folder / "out", options)
    return folder, found


def test_where_everything_meets_the_smallest_of_all_wins(loose) -> None:
    _, found = loose
    assert (found.exit_code, found.outcome) == (0, Outcome.MET)
    assert found.winner is not None
    smallest = min(found.formats, key=lambda row: row.nbytes_per_token)
    assert found.winner.format == smallest.format == found.sequence[-1]
    assert found.winner.format in found.winner.kvassay_python[0]
    assert "boldest" in found.reason


def test_the_sequence_is_the_frontier_from_conservative_to_bold(loose) -> None:
    _, found = loose
    rows = {row.format: row for row in found.formats}
    judged = [rows[name] for name in found.sequence]
    for one, other in pairwise(judged):
        assert one.nbytes_per_token > other.nbytes_per_token
        assert one.pilot_kl_nats < other.pilot_kl_nats
    assert all(row.on_frontier for row in judged)
    kept = [row for row in found.formats if row.on_frontier]
    for row in found.formats:
        dominating = [
            other
            for other in kept
            if other.nbytes_per_token <= row.nbytes_per_token and other.pilot_kl_nats <= row.pilot_kl_nats
        ]
        assert dominating == ([row] if row.on_frontier else dominating)
        assert dominating


def test_no_document_of_the_verdict_was_looked_at_by_the_search(loose) -> None:
    folder, found = loose
    content = read_pack(folder / "out")
    judged = {document["id"] for document in content.subject["corpus"]["documents"]}
    looked_at = {document["id"] for document in found.pilot["documents"]} | set(found.sensitivities["documents"])
    assert len(judged) == 20
    assert looked_at
    assert not judged & looked_at


def test_the_evidence_is_a_pack_of_the_derived_contract_that_verifies(loose, texts) -> None:
    folder, found = loose
    assert verify_pack(folder / "out", found.root).passed
    content = read_pack(folder / "out")
    assert content.contract.sha256 == found.derived_contract_sha256 != found.contract_sha256
    assert content.contract.candidates.order == found.sequence
    assert found.contract_sha256 in (folder / "out" / "contract.toml").read_text()
    assert content.contract.fidelity.kl_mean is not None
    assert content.contract.fidelity.kl_mean.max == 1000.0
    outcomes = {each.arm: each.outcome for each in content.verdicts.formats if each.role is Role.CANDIDATE}
    assert outcomes == {row.format: row.outcome for row in found.formats if row.judged}
    for row in found.formats:
        if row.judged:
            assert row.kl is not None
            assert row.kl.documents == 20
            assert row.kl.lower is not None
            assert row.kl.upper is not None
            assert row.kl.lower <= row.kl.estimate <= row.kl.upper
        else:
            assert row.kl is None
            assert row.outcome is None


def test_the_record_beside_the_pack_reads_back_and_bytes_are_the_packs(loose) -> None:
    folder, found = loose
    assert Found.model_validate_json((folder / "out.find.json").read_text()) == found
    content = read_pack(folder / "out")
    for row in found.formats:
        if row.judged:
            allocated = content.ledgers[row.format].allocated
            assert allocated is not None
            assert allocated.persistent_nbytes_per_token == row.nbytes_per_token
            assert allocated.tokens == found.context_tokens


def test_allocations_are_predicted_and_uniform_formats_are_not(loose) -> None:
    _, found = loose
    assert {row.kind for row in found.formats} == {"uniform", "allocated"}
    for row in found.formats:
        assert (row.predicted_kl_nats is None) == (row.kind == "uniform")
    dropped = {row.format: row.reason for row in found.dropped}
    assert all(dropped.values())


@pytest.mark.slow
def test_a_second_search_reads_the_sensitivities_and_agrees(loose, tiny_folder, texts, tmp_path, monkeypatch) -> None:
    folder, first = loose

    def never(*_):
        raise AssertionError("isolated KL was measured again")

    monkeypatch.setattr(search, "measure_sensitivities", never)
    options = OPTIONS._replace(sensitivities=folder / "kl.json", formats=("kv=int8:tensor",))
    again = run_search(str(tiny_folder), toml(texts, 1000.0, require=False), tmp_path / "out", options)
    assert again.sensitivities["source"] == "read"
    assert again.formats == first.formats
    assert again.sequence == first.sequence


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(ladder="kv=exl3-{bits}"), "its ladder is 'kv=exl3-{bits}', this search needs"),
        (lambda f: f["model"].update(weights_sha256="00"), "its model's weights_sha256 is '00'"),
        (lambda f: f.update(reference_kv="bf16"), "its reference_kv is 'bf16'"),
        (lambda f: f["text"].update(corpus_sha256="0"), "its corpus_sha256 is '0'"),
        (lambda f: f["format_digests"].update({"2": "0"}), "its format digests is"),
        (lambda f: f["entries"].pop(), "expected one for each of"),
        (lambda f: f.update(extra=1), "not a file of kvassay.sensitivities/1"),
    ],
)
def test_sensitivities_of_something_else_are_refused(change, message, loose, tiny_folder, texts, tmp_path) -> None:
    folder, _ = loose
    fields = json.loads((folder / "kl.json").read_text())
    change(fields)
    (tmp_path / "kl.json").write_text(json.dumps(fields))
    with pytest.raises(SearchError, match="^.*" + message.replace("{", "\\{").replace("(", "\\(")):
        run_search(
            str(tiny_folder),
            toml(texts, 1000.0, require=False),
            tmp_path / "out",
            OPTIONS._replace(sensitivities=tmp_path / "kl.json"),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kl.json"]


def test_sensitivities_of_a_judged_document_are_refused(loose, tiny_folder, texts, tmp_path) -> None:
    """No double use: what was chosen on a document may not be judged on it."""
    folder, _ = loose
    judged = read_pack(folder / "out").subject["corpus"]["documents"][0]["id"]
    fields = json.loads((folder / "kl.json").read_text())
    fields["text"]["documents"][0]["id"] = judged
    (tmp_path / "kl.json").write_text(json.dumps(fields))
    with pytest.raises(SearchError, match="which this contract judges"):
        run_search(
            str(tiny_folder),
            toml(texts, 1000.0, require=False),
            tmp_path / "out",
            OPTIONS._replace(sensitivities=tmp_path / "kl.json"),
        )


@pytest.mark.slow
def test_a_bound_between_two_formats_stops_there(loose, tiny_folder, texts, tmp_path) -> None:
    """The limit lies between the intervals of two judged formats: the winner loses less, what follows is not met."""
    _, first = loose
    kl = {row.format: row.kl for row in first.formats if row.kl is not None}
    limit = 0.0
    for one, other in pairwise(first.sequence):
        upper, lower = kl[one].upper, kl[other].lower
        assert upper is not None
        assert lower is not None
        if upper < lower / 2:
            limit = (upper * lower) ** 0.5
    assert limit > 0, "no two neighbours of the sequence are far enough apart"
    found = run_search(str(tiny_folder), toml(texts, limit, require=False), tmp_path / "out", OPTIONS)
    assert found.exit_code == 0
    assert found.winner is not None
    rows = {row.format: row for row in found.formats}
    place = found.sequence.index(found.winner.format)
    won = rows[found.winner.format].kl
    assert won is not None
    assert won.upper is not None
    assert won.upper < limit
    assert [rows[name].outcome for name in found.sequence[: place + 1]] == [Outcome.MET] * (place + 1)
    assert all(rows[name].outcome is not Outcome.MET for name in found.sequence[place + 1 :])


def test_a_contract_that_nothing_meets_is_breached_with_its_reason(tiny_folder, texts, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(toml(texts, limit=1e-12))
    arguments = ["find", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    arguments += ["--ladder", "kv=int{bits}:group32", "--widths", "2,8", "--pilot-prompt", "32", "--pilot-scored", "16"]
    assert run(arguments) == 1
    printed = capsys.readouterr().out
    assert "BREACHED (exit code 1): no format is shown to meet the contract; the safest, " in printed
    assert "winner" not in printed
    found = Found.model_validate_json((tmp_path / "out.find.json").read_text())
    assert found.winner is None
    assert len(found.sequence) == 1
    assert verify_pack(tmp_path / "out", found.root).passed


@pytest.mark.slow
def test_a_canary_that_does_not_fail_leaves_the_search_inconclusive(tiny_folder, texts, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(toml(texts, limit=1000.0, canary="kv=int8:group32/scale=f32"))
    arguments = ["find", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    arguments += ["--ladder", "kv=int{bits}:group32", "--widths", "4,8", "--by", "head", "--json"]
    arguments += ["--pilot-prompt", "32", "--pilot-scored", "16", "--judged", "2"]
    assert run(arguments) == 3
    found = Found.model_validate(json.loads(capsys.readouterr().out))
    assert found.winner is None
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "canary" in found.reason
    assert found.by == "head"


@pytest.mark.slow
def test_formats_beyond_the_byte_bound_are_left_out_before_the_run(tiny_folder, texts, tmp_path) -> None:
    """Judged first they would be breached, and stop the sequence."""
    text = toml(texts, 1000.0, require=False) + "\n[bytes]\npersistent_per_token_max = 420.0\n"
    found = run_search(str(tiny_folder), text, tmp_path / "out", OPTIONS)
    assert found.exit_code == 0
    assert all(row.nbytes_per_token <= 420 for row in found.formats)
    assert any("the contract allows 420" in row.reason for row in found.dropped)


@pytest.mark.slow
@pytest.mark.skipif(native_state().missing is not None, reason="no compiled kernels here")
def test_speed_times_what_kernels_read_and_nothing_else(tiny_folder, texts, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(toml(texts, limit=1000.0, require=False))
    arguments = ["find", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    arguments += ["--target", "speed", "--ladder", "kv=int{bits}:group32", "--widths", "2,3,8"]
    arguments += ["--pilot-prompt", "32", "--pilot-scored", "16", "--judged", "3"]
    assert run(arguments) == 0
    assert "measured on this machine" in capsys.readouterr().out
    found = Found.model_validate_json((tmp_path / "out.find.json").read_text())
    assert found.timing is not None
    assert found.timing["tokens"] == 72
    assert all(row.attention_us is not None and row.attention_us.median > 0 for row in found.formats)
    assert all("int3" not in row.format for row in found.formats)
    assert any("must be decoded first" in row.reason for row in found.dropped)
    rows = {row.format: row for row in found.formats}
    times = [rows[name].attention_us.median for name in found.sequence]  # pyright: ignore[reportOptionalMemberAccess]
    assert times == sorted(times, reverse=True)


def test_speed_without_kernels_is_refused(tiny_folder, texts, tmp_path, monkeypatch) -> None:
    missing = native_state()._replace(instruction_sets=(), missing="kernels were not compiled")
    monkeypatch.setattr("kvassay.find.attention_time.native_state", lambda: missing)
    with pytest.raises(KernelError, match="--target speed times the compiled kernels, and there are none"):
        run_search(str(tiny_folder), toml(texts, 1.0), tmp_path / "out", OPTIONS._replace(target="speed"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--widths", "2,x"], "--widths '2,x' is not whole numbers joined by commas"),
        (["--widths", "4"], "a ladder needs two widths or more"),
        (["--ladder", "kv=int4:group32"], "has no {bits} in it"),
        (["--ladder", "kv=int{bits}:group48"], "head_dim 64 is not a multiple of group 48"),
        (["--format", "kivi-5"], "format 'kivi-5' is unknown"),
        (["--target", "fun"], "fun"),
        (["--sensitivities", "no/such/folder/kl.json"], "its folder does not exist; make it first"),
    ],
)
def test_bad_options_are_one_line(arguments, message, tiny_folder, texts, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(toml(texts, limit=1.0))
    common = ["find", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    assert run([*common, *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml"]


def test_an_existing_folder_or_record_is_refused_before_the_pilot(tiny_folder, texts, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(toml(texts, limit=1.0))
    (tmp_path / "out.find.json").write_text("{}")
    assert run(["find", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_contract_for_another_model_is_refused_before_the_pilot(tiny_folder, texts, tmp_path) -> None:
    text = toml(texts, limit=1.0).replace("[text]", '[subject]\nmodel = "other"\n[text]')
    with pytest.raises(ContractError, match="the contract is for model 'other'"):
        run_search(str(tiny_folder), text, tmp_path / "out", OPTIONS)
    assert not list(tmp_path.iterdir())


def test_a_contract_of_bytes_alone_needs_no_search(tiny_folder, texts, tmp_path) -> None:
    text = toml(texts, limit=1.0).partition("[fidelity.kl_mean]")[0] + "[bytes]\npersistent_per_token_max = 900.0\n"
    with pytest.raises(ContractError, match="which need no search"):
        run_search(str(tiny_folder), text, tmp_path / "out", OPTIONS)


def test_sensitivities_hold_what_they_were_measured_on(loose) -> None:
    folder, found = loose
    kept = Sensitivities.model_validate_json((folder / "kl.json").read_text())
    assert kept.passes == len(kept.entries) * len(kept.text.documents) == 2 * 2 * 3 * 2
    assert kept.ladder == found.ladder
    by_width = {width: [each.mean for each in kept.entries if each.width == width] for width in (2, 4, 8)}
    assert sum(by_width[2]) > sum(by_width[4]) > sum(by_width[8]) > 0
