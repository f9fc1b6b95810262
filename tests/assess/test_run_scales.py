"""Where static scales come from in a run: the contract's policy, or a checkpoint; and what the evidence says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvassay.assess.run import plan_assessment, run_assessment
from kvassay.cli.app import run
from kvassay.core.contract import parse_contract
from kvassay.errors import CalibrationError
from kvassay.pack.reader import read_pack
from kvassay.pack.verify import verify_pack
from tests.cli.test_command_line import one_line_error


def run_with(tiny_folder, toml: str, out: Path, **options):
    result = run_assessment(str(tiny_folder), parse_contract(toml), toml, out, **options)
    assert verify_pack(result.out, result.manifest.root).passed
    return read_pack(out)


def kl_of(content, arm: str) -> list[float]:
    return [row["kl_nats"] for row in content.tables.tokens.to_pylist() if row["arm"] == arm]


@pytest.fixture(scope="module")
def scale_folder(tiny_folder, texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("scales") / "fp8"
    where = ["--text", f"path:{texts}", "--documents", "3", "--tokens", "64"]
    assert run(["scales", "write", str(tiny_folder), "--format", "fp8-e4m3-tensor", "--out", str(out), *where]) == 0
    return out


@pytest.mark.parametrize("policy", ["mse", "percentile 90"])
def test_b08_the_evidence_says_the_contracts_policy(policy, tiny_folder, contract_toml, tmp_path) -> None:
    toml = contract_toml.replace('"int8-tensor"', '"kv=int4:tensor"')
    other = toml.replace("[inference]", f'[inference]\ncalibration = "{policy}"')
    plain = run_with(tiny_folder, toml, tmp_path / "plain")
    found = run_with(tiny_folder, other, tmp_path / "other")
    sources = {arm.name: arm.scale_source for arm in found.arms}
    assert sources["kv=int4:tensor"] == f"calibrated({policy}, n=144 tokens)"
    assert sources["int8-token-head"] == "dynamic"
    report = (tmp_path / "other" / "report.html").read_text()
    assert f"calibrated({policy}, n=144 tokens)" in report
    assert f"<dt>policy for static scales</dt><dd><bdi>{policy}</bdi></dd>" in report
    assert kl_of(found, "kv=int4:tensor") != kl_of(plain, "kv=int4:tensor")
    assert kl_of(found, "int8-token-head") == kl_of(plain, "int8-token-head")


def test_b08_scales_of_a_checkpoint_serve_what_they_fit(tiny_folder, contract_toml, scale_folder, tmp_path) -> None:
    """Another checkpoint gives other rows of that arm alone, and each pack names the scales it was made with."""
    toml = contract_toml.replace('"int8-tensor"', '"fp8-e4m3-tensor", "int8-tensor"')
    doubled = shutil.copytree(scale_folder, tmp_path / "doubled")
    tensors = load_file(doubled / "kv_scales.safetensors")
    save_file({name: 2.5 * tensor for name, tensor in tensors.items()}, doubled / "kv_scales.safetensors")
    first = run_with(tiny_folder, toml, tmp_path / "a", scales=scale_folder)
    second = run_with(tiny_folder, toml, tmp_path / "b", scales=doubled)
    for content, name in ((first, "fp8"), (second, "doubled")):
        sources = {arm.name: arm.scale_source for arm in content.arms}
        digest = content.subject["scales"]["tensors_sha256"]
        assert sources["fp8-e4m3-tensor"] == f"checkpoint(llm-compressor, {name}, sha256 {digest[:12]})"
        assert sources["int8-tensor"] == "calibrated(min-max, n=144 tokens)"
        assert content.subject["scales"]["arms"] == ["fp8-e4m3-tensor"]
    assert first.subject["scales"]["tensors_sha256"] != second.subject["scales"]["tensors_sha256"]
    assert kl_of(first, "fp8-e4m3-tensor") != kl_of(second, "fp8-e4m3-tensor")
    assert kl_of(first, "int8-tensor") == kl_of(second, "int8-tensor")
    digest = first.subject["scales"]["tensors_sha256"]
    assert digest in (tmp_path / "a" / "report.html").read_text()


def test_a_run_without_a_checkpoint_records_none(tiny_folder, contract_toml, tmp_path) -> None:
    assert run_with(tiny_folder, contract_toml, tmp_path / "out").subject["scales"] is None


def test_b26_scales_of_one_are_named_in_the_evidence(tiny_folder, contract_toml, scale_folder, tmp_path) -> None:
    unit = shutil.copytree(scale_folder, tmp_path / "unit")
    tensors = load_file(unit / "kv_scales.safetensors")
    save_file({name: torch.ones_like(tensor) for name, tensor in tensors.items()}, unit / "kv_scales.safetensors")
    toml = contract_toml.replace('"int8-tensor"', '"fp8-e4m3-tensor"')
    content = run_with(tiny_folder, toml, tmp_path / "out", scales=unit / "kv_scales.safetensors")
    source = next(arm.scale_source for arm in content.arms if arm.name == "fp8-e4m3-tensor")
    assert source.endswith(", all scales 1.0)")
    assert content.subject["scales"]["all_unit"] is True


def broken(folder: Path, change) -> Path:
    tensors = load_file(folder / "kv_scales.safetensors")
    change(tensors)
    save_file(tensors, folder / "kv_scales.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("model.layers.1.self_attn.v_scale"), "layers.1.self_attn.v_scale is missing"),
        (lambda found: found["model.layers.0.self_attn.k_scale"].fill_(0), "layers.0.self_attn.k_scale has 1 zero"),
        (lambda found: found.update({"model.layers.0.self_attn.k_scale": torch.ones(3)}), r"has shape \[3\]"),
        (lambda found: found.clear() or found.update(x=torch.ones(1)), "has no scales, though its config names"),
    ],
)
def test_b25_scales_that_do_not_fit_are_refused_before_the_model_is_read(
    change, message, tiny_folder, contract_toml, scale_folder, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("kvassay.assess.run.load_model", lambda *_, **__: pytest.fail("the model was read"))
    folder = broken(shutil.copytree(scale_folder, tmp_path / "s"), change)
    toml = contract_toml.replace('"int8-tensor"', '"fp8-e4m3-tensor"')
    with pytest.raises(CalibrationError, match=message):
        plan_assessment(str(tiny_folder), parse_contract(toml), scales=folder)
    with pytest.raises(CalibrationError, match=message):
        run_assessment(str(tiny_folder), parse_contract(toml), toml, tmp_path / "out", scales=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_scales_that_no_format_takes_are_refused(tiny_folder, contract_toml, scale_folder, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(contract_toml)
    arguments = ["assess", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--dry-run"]
    error = one_line_error(capsys, [*arguments, "--scales", str(scale_folder)])
    assert "no format of the contract takes the scales of 'fp8', which serve fp8-e4m3:tensor; add" in error
    assert "nothing/here" in one_line_error(capsys, [*arguments, "--scales", "nothing/here"])


def test_the_command_takes_scales(tiny_folder, contract_toml, scale_folder, tmp_path, capsys) -> None:
    (tmp_path / "c.toml").write_text(contract_toml.replace('"int8-tensor"', '"fp8-e4m3-tensor"'))
    arguments = ["assess", str(tiny_folder), "--contract", str(tmp_path / "c.toml"), "--scales", str(scale_folder)]
    assert run([*arguments, "--dry-run", "--json"]) == 0
    assert "fp8-e4m3-tensor" in {each["arm"] for each in json.loads(capsys.readouterr().out)["clauses"]}
