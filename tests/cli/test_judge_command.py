"""`kvassay judge` and `kvassay compare`: rows judged again without torch, under their contract or another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.errors import ContractError
from kvassay.pack.compare import compare_packs
from kvassay.pack.post_hoc import NO_EVIDENCE, judge_post_hoc
from kvassay.pack.reader import read_pack
from tests.pack import sample_pack
from tests.pack.sample_pack import CONTRACT_TOML, write_sample
from tests.pack.tampering import edit, rehash

WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, NoTorch())
from kvassay.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "first"
    write_sample(out)
    return out


def other(tmp_path: Path, *changes: tuple[str, str]) -> str:
    text = CONTRACT_TOML
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "other.toml"
    path.write_text(text)
    return str(path)


def judged(pack: Path, contract: str, capsys) -> dict:
    code = run(["judge", str(pack), "--contract", contract, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return found


# The pack's own contract.


def test_the_same_pack_judged_without_torch_gives_byte_equal_verdicts(pack) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "judge", str(pack), "--json"], capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    stored = json.loads((pack / "verdicts.json").read_text())
    assert (found["bytes_equal"], found["post_hoc"], found["outcome"]) == (True, False, stored["outcome"])
    assert done.returncode == found["exit_code"] == stored["exit_code"] == 3
    assert found["verdicts"] == stored
    manifest = json.loads((pack / "manifest.json").read_text())
    assert found["verdicts_sha256"] == manifest["files"]["verdicts.json"]["sha256"]


def test_the_packs_own_contract_in_another_layout_is_not_post_hoc(pack, tmp_path, capsys) -> None:
    found = judged(pack, other(tmp_path, ("\n\n", "\n# a comment\n\n")), capsys)
    assert (found["post_hoc"], found["bytes_equal"]) == (False, True)


def test_verdicts_that_do_not_come_out_again_are_no_answer(pack, tmp_path, capsys) -> None:
    copy = tmp_path / "pack"
    write_sample(copy)
    edit(copy, "verdicts.json", lambda verdicts: verdicts.update(reason="better"))
    assert run(["judge", str(copy)]) == 2
    assert "verdicts.json has" in capsys.readouterr().err  # the size that the manifest lists
    rehash(copy)
    assert run(["judge", str(copy)]) == 2
    assert "gives other bytes than its verdicts.json" in capsys.readouterr().err


# Another contract.


def test_another_contract_is_post_hoc_in_name_json_text_and_reason(pack, tmp_path, capsys) -> None:
    contract = other(tmp_path, ("max = 0.02", "max = 0.05"), (', "q4_0"', ""), ("margin = 0.1", "margin = 0.2"))
    found = judged(pack, contract, capsys)
    assert (found["outcome"], found["exit_code"], found["post_hoc"]) == ("met post hoc", 0, True)
    assert found["verdicts"]["reason"].startswith(NO_EVIDENCE)
    assert found["verdicts"]["schema_version"] == "kvassay.verdicts-post-hoc/1"
    outcomes = {one["outcome"] for one in found["verdicts"]["formats"]}
    outcomes |= {clause["outcome"] for one in found["verdicts"]["formats"] for clause in one["clauses"]}
    assert all(outcome.endswith(" post hoc") for outcome in outcomes)
    changed = {each["key"]: (each["pack"], each["contract"]) for each in found["changed"]}
    assert changed["fidelity.kl_mean.max"] == (0.02, 0.05)
    assert changed["task.recall.margin"] == (0.1, 0.2)
    assert run(["judge", str(pack), "--contract", contract]) == 0
    text = capsys.readouterr().out
    assert f"MET POST HOC (exit code 0): {NO_EVIDENCE}" in text
    assert "changed fidelity.kl_mean.max: 0.02 in the pack, 0.05 now" in text
    assert " MET:" not in text


def test_a_stricter_contract_breaches_with_its_own_exit_code(pack, tmp_path, capsys) -> None:
    found = judged(pack, other(tmp_path, ("max = 0.02", "max = 0.0001")), capsys)
    assert (found["outcome"], found["exit_code"]) == ("breached post hoc", 1)


def test_a_clause_of_the_other_contract_may_be_new_if_the_rows_hold_its_figure(pack, tmp_path, capsys) -> None:
    clause = "[fidelity.nll_delta]\nmax = 0.5\n[fidelity.kl_exceed]\ntau_nats = 0.5\nmax_rate = 0.2\n[task.recall]"
    found = judged(pack, other(tmp_path, ("[task.recall]", clause)), capsys)
    names = {clause["clause"] for clause in found["verdicts"]["formats"][0]["clauses"]}
    assert names == {"fidelity.kl_mean", "fidelity.kl_exceed", "fidelity.nll_delta", "task.recall"}


def test_a_candidate_that_the_contract_does_not_name_is_left_out_and_said(pack, tmp_path, capsys) -> None:
    found = judged(pack, other(tmp_path, ('"kivi-4", "q4_0"', '"kivi-4"'), ('"int8-token-head", ', "")), capsys)
    assert found["left_out"] == ["int8-token-head"]
    assert next(one["arm"] for one in found["verdicts"]["formats"]) == "kivi-4"


def test_a_contract_without_text_may_name_any(pack, tmp_path, capsys) -> None:
    contract = other(tmp_path, ("[fidelity.kl_mean]\nmax = 0.02\n", ""), ("documents = 20", "documents = 40"))
    found = judged(pack, contract, capsys)
    assert all(clause["clause"] == "task.recall" for clause in found["verdicts"]["formats"][0]["clauses"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("documents = 20", "documents = 21"), "text.documents is 21, the rows were measured with 20"),
        (("prompt_tokens = 193", "prompt_tokens = 190"), "text.prompt_tokens is 190"),
        (("scored_tokens = 7", "scored_tokens = 6"), "text.scored_tokens is 6"),
        (("documents = 20", 'documents = 20\ncorpus = "python-source"'), "text.corpus is 'python-source'"),
        (("[inference]", "[inference]\nseed = 8"), "inference.seed is 8, the rows were measured with 7"),
        (("[inference]", "[inference]\npilot_items = 2"), "inference.pilot_items is 2"),
        (("[inference]", '[inference]\nprefill_reads = "stored"'), "inference.prefill_reads is 'stored'"),
        (("[inference]", '[inference]\ncalibration = "mse"'), "inference.calibration is"),
        (("items = 40", "items = 39"), "task.recall.items is 39, the rows were measured with 40"),
        (("items = 40", "items = 40\ncontext_lines = 12"), "task.recall.context_lines is 12"),
        (('"kivi-4", "q4_0"', '"kivi-4", "q8_0"'), "its candidate 'q8_0' was not run as one"),
        (('canary = "kivi-2,recent=32"', 'canary = "kivi-2"'), "its canary 'kivi-2' was not run as one"),
        (("[controls]", "[controls]\naa_runs = 2"), "asks for 2 runs of the reference against itself, and there are 1"),
        (("[text]", '[subject]\nmodel = "other"\n[text]'), "subject.model is 'other', the rows are of 'sample'"),
        (("[text]", '[subject]\nreference_kv = "f16"\n[text]'), "subject.reference_kv is 'f16'"),
    ],
)
def test_what_rows_cannot_answer_is_refused_by_name(change, message, pack, tmp_path, capsys) -> None:
    assert run(["judge", str(pack), "--contract", other(tmp_path, change)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "cannot answer this contract" in error
    assert error.count("\n") == 1


def test_a_key_that_is_no_known_bound_decides_rows_and_is_refused(pack, tmp_path, monkeypatch) -> None:
    """So a key that a later version adds is refused until somebody says that it is a bound."""
    content = read_pack(pack)
    contract = parse_contract(CONTRACT_TOML)
    fields = {**contract.to_json(), "later": {"setting": 1}}
    original = type(contract).to_json
    monkeypatch.setattr(type(contract), "to_json", lambda self: fields if self is contract else original(self))
    with pytest.raises(ContractError, match="later is"):
        judge_post_hoc(content, contract)


NUMERIC = "[numeric]\ndocuments = 20\n[numeric.output_relative]\nmax = 0.5\n"
GENERATED = "[free_running.diverged]\nmax_rate = 0.5\n"


@pytest.mark.parametrize(
    ("level", "change", "message"),
    [
        (NUMERIC, ("prompt_tokens = 193", "prompt_tokens = 4000"), "text.prompt_tokens is 4000"),
        (NUMERIC, ("scored_tokens = 7", "scored_tokens = 70"), "text.scored_tokens is 70"),
        (GENERATED, ("documents = 20", 'documents = 20\ncorpus = "python-source"'), "text.corpus is 'python-source'"),
    ],
)
def test_rows_of_other_levels_answer_for_their_own_text_alone(level, change, message, tmp_path, monkeypatch) -> None:
    """Captured tensors and prompts come from `[text]` too, also where nothing of it is scored."""
    toml = CONTRACT_TOML.replace("[fidelity.kl_mean]\nmax = 0.02\n", level)
    monkeypatch.setattr(sample_pack, "CONTRACT_TOML", toml)
    write_sample(tmp_path / "pack")
    content = read_pack(tmp_path / "pack")
    assert judge_post_hoc(content, parse_contract(toml.replace('name = "sample"', 'name = "again"')))
    with pytest.raises(ContractError, match=message):
        judge_post_hoc(content, parse_contract(toml.replace(*change)))


def test_rows_of_a_pack_without_text_or_task_answer_none(tmp_path, capsys, monkeypatch) -> None:
    task_only = CONTRACT_TOML.replace("[fidelity.kl_mean]\nmax = 0.02\n", "").replace(', "q4_0"', "")
    monkeypatch.setattr(sample_pack, "CONTRACT_TOML", task_only)
    write_sample(tmp_path / "pack")
    assert run(["judge", str(tmp_path / "pack"), "--contract", other(tmp_path)]) == 2
    assert "fidelity" in capsys.readouterr().err


# Two packs.


@pytest.fixture
def second(tmp_path, monkeypatch) -> Path:
    """The same texts and items; KIVI-4 loses less, under another margin."""
    monkeypatch.setitem(sample_pack.MEAN_KL_NATS, "kivi-4", 0.01)
    monkeypatch.setitem(sample_pack.WRONG_SHARE, "kivi-4", 0.7)
    monkeypatch.setattr(sample_pack, "CONTRACT_TOML", CONTRACT_TOML.replace("margin = 0.1", "margin = 0.2"))
    write_sample(tmp_path / "second")
    return tmp_path / "second"


def test_compare_pairs_documents_and_items_and_names_what_changed(pack, second, capsys) -> None:
    assert run(["compare", str(pack), str(second), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same_model"]
    assert [each["path"] for each in found["contract_differences"]] == ["task.recall.margin"]
    formats = {one["arm"]: one for one in found["formats"]}
    kivi = {clause["clause"]: clause for clause in formats["kivi-4"]["clauses"] if clause["slice"] == "all"}
    kl = kivi["fidelity.kl_mean"]["paired"]
    estimates = [kivi["fidelity.kl_mean"][which]["estimate"] for which in ("first", "second")]
    assert kl["estimate"] == pytest.approx(estimates[1] - estimates[0])
    assert kl["lower"] < kl["estimate"] < kl["upper"] < 0
    assert (kl["n"], kl["n_unit"]) == (20, "documents")
    separate = kivi["fidelity.kl_mean"]["first"]["upper"] - kivi["fidelity.kl_mean"]["first"]["lower"]
    assert kl["upper"] - kl["lower"] < separate
    recall = kivi["task.recall"]
    assert recall["paired"]["estimate"] == pytest.approx(recall["difference"])
    assert recall["difference"] < 0
    assert recall["paired"]["n"] == 40
    same = {one["clause"]: one for one in formats["int8-token-head"]["clauses"] if one["slice"] == "all"}
    assert same["fidelity.kl_mean"]["paired"]["estimate"] == 0
    assert formats["q4_0"]["clauses"][0]["paired"] is None
    assert run(["compare", str(pack), str(second)]) == 0
    text = capsys.readouterr().out
    assert "other contract: task.recall.margin: 0.1 -> 0.2" in text
    assert "same model" in text
    assert "verdicts changed: kivi-4" in text


def test_a_pack_compared_with_itself_does_not_move(pack, capsys) -> None:
    assert run(["compare", str(pack), str(pack)]) == 0
    text = capsys.readouterr().out
    assert "same contract\nsame model\n" in text
    assert "verdicts changed: none" in text


def test_other_texts_are_not_paired_and_other_formats_are_named(pack, tmp_path, monkeypatch) -> None:
    """Documents of one name but other tokens are other documents."""
    rows = sample_pack.token_rows

    def others(arm: str, document: int) -> dict:
        return {**rows(arm, document), "token_id": rows(arm, document)["token_id"] + 1}

    monkeypatch.setattr(sample_pack, "token_rows", others)
    toml = CONTRACT_TOML.replace('"kivi-4", "q4_0"', '"kivi-4", "q8_0"')
    monkeypatch.setattr(sample_pack, "CONTRACT_TOML", toml)
    write_sample(tmp_path / "second")
    found = compare_packs(read_pack(pack), read_pack(tmp_path / "second"))
    clause = found.formats[0].clauses[0]
    assert (clause.paired, clause.unpaired) == (None, "the packs have no document in common")
    assert clause.difference == 0
    assert (found.first_only, found.second_only) == (("q4_0",), ("q8_0",))


def test_every_fidelity_clause_and_slice_is_paired_over_the_rows_that_it_looks_at(tmp_path, monkeypatch) -> None:
    """A slice that the judge cuts too, and of conversations the assistant's turns alone where the contract says so."""
    rows = sample_pack.token_rows

    def spoken(arm: str, document: int) -> dict:
        return {**rows(arm, document), "slice": ["chat,role=user", "chat,role=assistant"] * 3}

    names = ("reverse_kl_mean", "top1_agreement", "topk_agreement")
    more = "".join(f"[fidelity.{name}]\nmax{'' if 'kl' in name else '_disagreement'} = 0.5\n" for name in names)
    toml = CONTRACT_TOML.replace("documents = 20", 'documents = 20\nscored = "assistant"')
    toml = toml.replace("max = 0.02", 'max = 0.02\nslices = ["position=late"]')
    monkeypatch.setattr(sample_pack, "CONTRACT_TOML", toml.replace("[task.recall]", f"{more}[task.recall]"))
    monkeypatch.setattr(sample_pack, "token_rows", spoken)
    write_sample(tmp_path / "first")
    monkeypatch.setitem(sample_pack.MEAN_KL_NATS, "kivi-4", 0.4)
    write_sample(tmp_path / "second")
    found = compare_packs(read_pack(tmp_path / "first"), read_pack(tmp_path / "second"))
    kivi = next(one for one in found.formats if one.arm == "kivi-4")
    named = {(clause.clause, clause.slice): clause for clause in kivi.clauses}
    late = ("fidelity.kl_mean", "position=late")
    for key in (*((f"fidelity.{name}", "all") for name in ("kl_mean", *names)), late):
        paired = named[key].paired
        assert paired is not None, (key, named[key].unpaired)
        assert paired.estimate == pytest.approx(named[key].difference), key
    assert named[late].paired.estimate != named["fidelity.kl_mean", "all"].paired.estimate


def test_another_exceedance_is_not_compared(pack, tmp_path, monkeypatch) -> None:
    def with_tau(tau: float, name: str):
        clause = f"[fidelity.kl_exceed]\ntau_nats = {tau}\nmax_rate = 0.5\n[task.recall]"
        monkeypatch.setattr(sample_pack, "CONTRACT_TOML", CONTRACT_TOML.replace("[task.recall]", clause))
        write_sample(tmp_path / name)
        return read_pack(tmp_path / name)

    first, same, other_tau = with_tau(0.5, "a"), with_tau(0.5, "b"), with_tau(0.25, "c")

    def exceedance(comparison):
        return next(each for each in comparison.formats[0].clauses if each.clause == "fidelity.kl_exceed")

    assert exceedance(compare_packs(first, same)).paired is not None
    assert exceedance(compare_packs(first, other_tau)).unpaired == "the two contracts count another exceedance"


@pytest.mark.parametrize("command", ["judge", "compare"])
def test_a_damaged_pack_is_neither_judged_nor_compared(command, tmp_path, capsys) -> None:
    write_sample(tmp_path / "pack")
    table = tmp_path / "pack" / "rows" / "items.parquet"
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(bytes(data))
    arguments = [command, str(tmp_path / "pack")] + ([str(tmp_path / "pack")] if command == "compare" else [])
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert "rows/items.parquet" in error
    assert error.count("\n") == 1


# Every level of evidence.

ALL_LEVELS = """
schema = "kvassay.contract/1"
name = "levels"
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 40
scored_tokens = 8
[candidates]
order = ["int8-token-head"]
[inference]
pilot_documents = 2
bootstrap_replicates = 400
[controls]
canary = "int2-g32"
[fidelity.kl_mean]
max = 0.001
[free_running]
prompts = 20
prompt_tokens = 40
generated_tokens = 8
pilot_prompts = 2
[free_running.diverged]
max_rate = 0.5
[numeric]
documents = 20
[numeric.output_relative]
max = 0.5
"""


def test_rows_of_every_level_are_judged_again(tiny_folder, texts, tmp_path, capsys) -> None:
    """A table that is left out makes its clauses NOT MEASURED, which are other bytes."""
    from kvassay.assess.run import run_assessment

    toml = ALL_LEVELS.format(texts=texts)
    run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "pack")
    run(["judge", str(tmp_path / "pack"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_equal"] is True
    (tmp_path / "other.toml").write_text(
        toml.replace("max_rate = 0.5", "max_rate = 0.4").replace("max = 0.5", "max = 0.4")
    )
    again = judged(tmp_path / "pack", str(tmp_path / "other.toml"), capsys)
    assert {each["key"] for each in again["changed"]} == {
        "free_running.diverged.max_rate",
        "numeric.output_relative.max",
    }
    (first, *_) = again["verdicts"]["formats"]
    clauses = {clause["clause"]: clause for clause in first["clauses"] if clause["slice"] == "all"}
    for name in ("free_running.diverged", "numeric.output_relative"):
        assert clauses[name]["estimate"] is not None
        assert clauses[name]["n"] == 20
        assert clauses[name]["limit"] == 0.4
    (tmp_path / "third.toml").write_text(toml.replace("generated_tokens = 8", "generated_tokens = 7"))
    assert run(["judge", str(tmp_path / "pack"), "--contract", str(tmp_path / "third.toml")]) == 2
    assert "free_running.generated_tokens is 7, the rows were measured with 8" in capsys.readouterr().err
    assert run(["compare", str(tmp_path / "pack"), str(tmp_path / "pack")]) == 0
    assert "free_running.diverged: documents and items are paired, no other rows" in capsys.readouterr().out
