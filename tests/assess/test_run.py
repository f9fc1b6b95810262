"""The whole road on a tiny model: plan, measure, judge, pack, report, verify."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from kvassay.assess.levels.documents import DocumentLevel
from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.core.records import Outcome, Role
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.errors import ContractError, ModelError, NonFiniteError, PackError, WorkloadError
from kvassay.pack.checks import Check
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from kvassay.report.again import with_report_checks
from tests.pack.tampering import edit, rehash


@pytest.fixture(scope="module")
def pack(tiny_folder, texts, tmp_path_factory):
    from tests.conftest import CONTRACT

    toml = CONTRACT.format(texts=texts)
    out = tmp_path_factory.mktemp("packs") / "pack"
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, out)
    return result, read_pack(out)


def test_r105_a_run_leaves_a_pack_that_verifies_and_a_report(pack) -> None:
    result, content = pack
    verification = verify_pack(result.out, result.manifest.root)
    assert verification.passed, [check for check in verification.checks if not check.passed]
    assert "<html" in (result.out / "report.html").read_text()
    assert content.verdicts == result.verdicts
    assert not list(result.out.parent.glob(".*partial*"))


def report_check(folder: Path) -> Check:
    """The one check of the report that `kvassay verify` makes."""
    (check,) = [check for check in with_report_checks(folder, verify_pack(folder)).checks if check.name == "report"]
    return check


def test_r114_the_report_and_its_charts_render_again_from_the_pack(pack) -> None:
    result, _ = pack
    verification = with_report_checks(result.out, verify_pack(result.out))
    assert verification.passed
    assert "byte for byte" in report_check(result.out).sentence
    charts = {f"chart: charts/{path.name}" for path in (result.out / "charts").iterdir()}
    assert charts
    assert charts <= {check.name for check in verification.checks}


def test_an_edited_report_or_chart_is_found_without_the_root(pack, tmp_path) -> None:
    result, _ = pack
    folder = shutil.copytree(result.out, tmp_path / "pack")
    page = (folder / "report.html").read_text()
    (folder / "report.html").write_text(page.replace("INCONCLUSIVE", "MET").replace("Inconclusive", "Met"))
    chart = sorted((folder / "charts").iterdir())[0]
    edit(folder, f"charts/{chart.name}", lambda spec: spec.update(title="better"))
    rehash(folder)
    assert verify_pack(folder).passed
    found = {check.name for check in with_report_checks(folder, verify_pack(folder)).failed}
    assert found == {"report", f"chart: charts/{chart.name}"}


def test_a_report_that_another_machine_drew_passes_and_says_so(pack, tmp_path) -> None:
    """Fonts differ between machines, and with them the drawings; the words and figures around them do not."""
    result, _ = pack
    folder = shutil.copytree(result.out, tmp_path / "pack")
    page = (folder / "report.html").read_text()
    assert '<svg class="chart wide"' in page
    (folder / "report.html").write_text(re.sub(r'(<svg class="chart wide"[^>]*>)', r"\1<g></g>", page))
    rehash(folder)
    check = report_check(folder)
    assert check.passed
    assert "drawings, which this machine draws otherwise" in check.sentence


def test_a_report_of_another_version_is_not_compared(pack, tmp_path) -> None:
    result, _ = pack
    folder = shutil.copytree(result.out, tmp_path / "pack")
    (folder / "report.html").write_text("other")
    edit(folder, "manifest.json", lambda manifest: manifest.update(kvassay_version="0.0.9"))
    rehash(folder)
    check = report_check(folder)
    assert check.passed
    assert "not compared: kvassay 0.0.9 wrote it" in check.sentence


def test_a_contract_of_bytes_alone_needs_no_run(tiny_folder, tmp_path) -> None:
    toml = TASK_ONLY.format(lines=3).partition("[task.recall]")[0] + "[bytes]\npersistent_per_token_max = 9000\n"
    with pytest.raises(ContractError, match="kvassay bytes computes them"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert nothing_written(tmp_path)


def test_every_arm_is_measured_on_the_same_positions(pack) -> None:
    _, content = pack
    tokens = content.tables.tokens.to_pylist()
    by_arm: dict[str, set] = {}
    for row in tokens:
        by_arm.setdefault(row["arm"], set()).add((row["document"], row["position"]))
    names = {arm.name for arm in content.arms}
    assert set(by_arm) == names
    assert len({frozenset(positions) for positions in by_arm.values()}) == 1
    assert len(next(iter(by_arm.values()))) == 20 * 23  # the last scored token has no true next one
    items = content.tables.items.to_pylist()
    assert {row["arm"] for row in items} == names
    assert len({row["context"] for row in items}) == 6


def test_controls_a_a_reproduces_the_reference_and_the_canary_does_damage(pack) -> None:
    _, content = pack
    rows = content.tables.tokens.to_pylist()
    kl = {arm.role: [row["kl_nats"] for row in rows if row["arm"] == arm.name] for arm in content.arms}
    assert max(map(abs, kl[Role.REFERENCE_AGAIN])) < 1e-5
    assert sum(kl[Role.CANARY]) > 10 * sum(kl[Role.CANDIDATE])
    verdicts = {verdict.role: verdict.outcome for verdict in content.verdicts.formats}
    assert verdicts[Role.REFERENCE_AGAIN] is not Outcome.BREACHED


def test_b08_scale_sources_are_never_empty(pack) -> None:
    _, content = pack
    sources = {arm.name: arm.scale_source for arm in content.arms}
    assert sources["int8-token-head"] == "dynamic"
    assert sources["int8-tensor"] == "calibrated(min-max, n=144 tokens)"
    assert sources["f32 again 1"] == "none"


def test_pilot_and_verdict_share_no_document(pack) -> None:
    _, content = pack
    judged = {document["id"] for document in content.subject["corpus"]["documents"]}
    pilot = set(content.plan["pilot"]["document_ids"])
    assert len(judged) == 20
    assert len(pilot) == 2
    assert not judged & pilot


def test_r13_allocated_bytes_equal_computed_bytes(pack) -> None:
    _, content = pack
    for pair in content.ledgers.values():
        assert pair.allocated is not None
        assert pair.allocated.keys_nbytes == pair.computed.keys_nbytes
        assert pair.allocated.values_nbytes == pair.computed.values_nbytes


def test_r35_r36_r113_the_record_names_versions_hardware_and_sources(pack) -> None:
    _, content = pack
    environment = content.environment
    assert environment["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert environment["source_sha256"]["judge/verdicts.py"]
    assert environment["peak_rss_nbytes"] > 1e8
    assert set(environment["seconds"]) >= {"load", "pilot", "documents", "items", "judge"}
    assert content.subject["model"]["weights_sha256"]


def test_r94_numeric_level_has_every_arm_layer_head_and_side(pack) -> None:
    _, content = pack
    rows = content.tables.tensors.to_pylist()
    found = [(row["arm"], row["layer"], row["head"], row["substituted"]) for row in rows]
    sides = ("keys", "values", "both")
    expected = itertools.product([arm.name for arm in content.arms], (0, 1), (0, 1), sides)
    assert sorted(found) == sorted(expected)
    assert {row["document"] for row in rows} == {document["id"] for document in content.subject["numeric"]["documents"]}


def test_the_same_run_gives_the_same_rows_and_verdicts(pack, tiny_folder, contract_toml, tmp_path) -> None:
    first, _ = pack
    second = run_assessment(str(tiny_folder), parse_contract(contract_toml), contract_toml, tmp_path / "again")
    assert second.verdicts == first.verdicts
    for table in ("tokens", "items", "tensors"):
        name = f"rows/{table}.parquet"
        assert (second.out / name).read_bytes() == (first.out / name).read_bytes()


def test_a_dry_run_plans_and_writes_nothing(tiny_folder, contract_toml, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    contract = parse_contract(contract_toml)
    plan = plan_assessment(str(tiny_folder), contract)
    assert plan["contract_sha256"] == contract.sha256
    assert {entry["clause"] for entry in plan["clauses"]} == {"fidelity.kl_mean", "task.recall"}
    assert plan["cost"]["reference_tokens"] > 20 * 72
    assert not list(tmp_path.iterdir())


def test_the_command_prints_verdicts_and_returns_their_exit_code(tiny_folder, contract_toml, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(contract_toml)
    arguments = ["assess", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    code = run(arguments)
    captured = capsys.readouterr()
    content = read_pack(tmp_path / "out")
    assert code == content.verdicts.exit_code
    for verdict in content.verdicts.formats:
        assert verdict.arm in captured.out
    assert "plan under contract" in captured.err
    assert content.manifest is not None
    assert content.manifest.root in captured.out

    again = run(arguments)
    assert again == 2
    assert "exists" in capsys.readouterr().err


def test_json_is_one_document(tiny_folder, contract_toml, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(contract_toml)
    out = tmp_path / "out"
    code = run(["assess", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out", str(out), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["verdicts"]["exit_code"] == code
    assert Path(result["out"]) == out


def nothing_written(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_nan_in_the_model_is_counted_named_and_leaves_nothing(
    tiny_folder, contract_toml, tmp_path, monkeypatch
) -> None:
    original = DecodeScorer.reference

    def broken(self, token_ids):
        found = original(self, token_ids)
        if len(token_ids) == 72:
            with torch.inference_mode():
                found.values[1][0, 1, 9, 4] = torch.nan
        return found

    monkeypatch.setattr(DecodeScorer, "reference", broken)
    with pytest.raises(NonFiniteError, match=r"values of layer 1: entries hold \d+ NaN and 0 infinite"):
        run_assessment(str(tiny_folder), parse_contract(contract_toml), contract_toml, tmp_path / "out")
    assert nothing_written(tmp_path)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("[text]", '[subject]\nmodel = "other"\n[text]'), ContractError, "the contract is for model 'other'"),
        (("[text]", '[subject]\ntokenizer_sha256 = "00"\n[text]'), ModelError, "subject.tokenizer_sha256"),
        (("documents = 20", "documents = 29"), WorkloadError, "documents"),
        (("scored_tokens = 24", "scored_tokens = 450"), WorkloadError, "long enough"),
        (("path:", "path:nowhere/"), WorkloadError, "nowhere"),
    ],
)
def test_bad_input_leaves_nothing(change, error, message, tiny_folder, contract_toml, tmp_path) -> None:
    assert change[0] in contract_toml
    toml = contract_toml.replace(*change)
    with pytest.raises(error, match=message):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert nothing_written(tmp_path)


def test_an_empty_corpus_is_refused(tiny_folder, contract_toml, texts, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    toml = contract_toml.replace(str(texts), str(empty))
    with pytest.raises(WorkloadError, match="empty"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_an_unwritable_place_is_refused_before_the_model_is_read(tiny_folder, contract_toml, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError):
        run_assessment("missing-model", parse_contract(contract_toml), contract_toml, tmp_path / "file" / "out")


def broken_off(monkeypatch, error: BaseException, document: int) -> None:
    """The run ends with `error` at this document of the verdict, before its rows."""
    original = DocumentLevel.measure

    def measure(self, subject, unit, sink, *, pilot=False):
        if unit is self.units[document]:
            raise error
        original(self, subject, unit, sink, pilot=pilot)

    monkeypatch.setattr(DocumentLevel, "measure", measure)


def test_a_run_that_is_interrupted_before_any_row_leaves_nothing(
    tiny_folder, contract_toml, tmp_path, monkeypatch
) -> None:
    broken_off(monkeypatch, KeyboardInterrupt(), 0)
    with pytest.raises(KeyboardInterrupt):
        run_assessment(str(tiny_folder), parse_contract(contract_toml), contract_toml, tmp_path / "out")
    assert nothing_written(tmp_path)


def test_an_aborted_run_leaves_its_rows_unjudged_and_a_later_one_names_it(
    pack, tiny_folder, contract_toml, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "c.toml").write_text(contract_toml)
    command = ["assess", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--out"]
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with monkeypatch.context() as patch:
        broken_off(patch, NonFiniteError("values of layer 1: entries hold 1 NaN"), 3)
        assert run([*command, first]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith(f"entries hold 1 NaN; what was measured is kept as an aborted pack: {first}")
    assert not list(tmp_path.glob(".*"))
    assert run(["verify", first]) == 3
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("ABORTED, and nothing was judged: the run was aborted in stage documents after 3 of 20 doc")
    assert "NonFiniteError: values of layer 1: entries hold 1 NaN" in said

    assert run([*command, second, "--after", first, "--json"]) == pack[0].verdicts.exit_code
    result = json.loads(capsys.readouterr().out)
    root = json.loads((tmp_path / "first" / "manifest.json").read_text())["root"]
    assert [(each["root"], each["aborted"]) for each in result["after"]] == [(root, True)]
    assert run(["verify", second, "--root", result["root"]]) == 0
    assert "names 1 earlier run under its contract, 1 of them aborted" in capsys.readouterr().out


TASK_ONLY = """
schema = "kvassay.contract/1"
name = "task only"
[candidates]
order = ["int8-token-head"]
[inference]
pilot_items = 2
[controls]
canary = "int2-g32"
[task.recall]
margin = 0.1
ref_floor = 0.0
items = 3
context_lines = {lines}
"""


@pytest.fixture(scope="module")
def short_model(tmp_path_factory) -> Path:
    """GPT-2 with learned positions: beyond the hundredth there is no embedding and the model crashes."""
    from transformers import GPT2Config

    from tests.engines.model_folders import write_folder

    config = GPT2Config(vocab_size=320, n_positions=100, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    return write_folder(tmp_path_factory.mktemp("short") / "gpt2", config)


def no_pilot(*_: object) -> None:
    raise AssertionError("the pilot must not begin")


TEXT_TOO = """
[text]
corpus = "path:{texts}"
documents = 20
prompt_tokens = 24
scored_tokens = 8
[inference]
pilot_documents = 2
pilot_items = 2
[fidelity.kl_mean]
max = 0.01
"""


@pytest.mark.parametrize("text", ["", TEXT_TOO], ids=["items alone", "text too"])
def test_items_longer_than_the_context_are_refused_before_the_pilot(
    short_model, texts, text, tmp_path, monkeypatch
) -> None:
    """R45: a context that is exceeded is an error and no measurement, with text to score or without."""
    monkeypatch.setattr("kvassay.assess.run.run_pilot", no_pilot)
    toml = TASK_ONLY.format(lines=24)
    if text:
        toml = toml.replace("[inference]\npilot_items = 2\n", text.format(texts=texts))
    contract = parse_contract(toml)
    message = r"context_lines = 24 have up to \d+ tokens, .*has a context of 100 tokens; at most about \d+ lines fit"
    with pytest.raises(ContractError, match=message):
        plan_assessment(str(short_model), contract)
    with pytest.raises(ContractError, match=message):
        run_assessment(str(short_model), contract, toml, tmp_path / "out")
    assert nothing_written(tmp_path)


def test_items_that_fit_a_short_context_run(short_model, tmp_path) -> None:
    toml = TASK_ONLY.format(lines=3)
    result = run_assessment(str(short_model), parse_contract(toml), toml, tmp_path / "out")
    assert verify_pack(result.out, result.manifest.root).passed
    rows = read_pack(result.out).tables.items.to_pylist()
    assert {row["context"] for row in rows} == {"recall/7/2", "recall/7/3", "recall/7/4"}


@pytest.mark.parametrize("change", [('"kivi-4,recent=8"', '"kivi-4"'), ('canary = "int2-g32"', 'canary = "kivi-2"')])
def test_b02_a_text_that_never_leaves_the_window_is_refused_before_the_model_is_read(
    change, tiny_folder, contract_toml, tmp_path
) -> None:
    """Its verdict would be INVALID EVIDENCE: every query reads exact values."""
    toml = contract_toml.replace(*change)
    with pytest.raises(ContractError, match=r"keeps 128 tokens and more at full precision.* 0% would read any code"):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
