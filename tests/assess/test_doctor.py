"""The doctor: what weights alone and a short text say, which layers it names, and that it says no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config, PretrainedConfig, Qwen3Config

from kvassay.assess import doctor
from kvassay.assess.doctor import BIAS_RATIO_LIMIT, OUTLIER_LIMIT, Diagnosis, Severity, diagnose
from kvassay.cli.app import run
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.methods import methods
from kvassay.engines.transformers.checkpoint_keys import checkpoint_keys
from kvassay.errors import GeometryError, ModelError
from kvassay.measures.channel_outliers import outlier_ratio
from tests import tiny_models
from tests.cli.test_command_line import one_line_error, write_config
from tests.engines.model_folders import byte_tokenizer

BIAS = torch.tensor([150.0, -200.0, 250.0, -300.0])


def folder_of(path: Path, config: PretrainedConfig, change=None) -> Path:
    """A transformers folder of a random model, changed by `change(model)`."""
    torch.manual_seed(0)
    config.vocab_size = 320
    model = AutoModelForCausalLM.from_config(config)
    if change is not None:
        with torch.no_grad():
            change(model)
    model.save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def with_bias(layer: int, bias: torch.Tensor = BIAS):
    def change(model) -> None:
        model.model.layers[layer].self_attn.k_proj.bias.view(2, 64)[:, [3, 21, 40, 61]] = bias

    return change


def from_weights(folder: Path) -> Diagnosis:
    return diagnose(str(folder), None, 64, lambda _: None)


def risks(found: Diagnosis) -> dict[str, tuple[int, ...]]:
    return {finding.what: finding.layers for finding in found.findings if finding.severity is Severity.RISK}


def test_b01_b04_a_biased_layer_is_named_from_weights_alone(tmp_path, monkeypatch) -> None:
    """No model is loaded: only tensors of the file are read."""
    monkeypatch.setattr(doctor, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    found = from_weights(folder_of(tmp_path / "hostile", tiny_models.tiny_config("qwen2"), with_bias(1)))

    assert risks(found) == {"key bias": (1,)}
    finding = next(finding for finding in found.findings if finding.what == "key bias")
    assert finding.basis == "weights"
    assert {"int4-g32", "int4-g64", "q4_0"} <= set(finding.avoid)
    assert not {"kivi-4", "int8-token-head", "f16"} & set(finding.avoid)
    assert "int4-g64,keybias=removed" in finding.prefer
    assert "@1.k=f16" in finding.prefer
    row = found.weights[1]
    assert row.bias_norm == pytest.approx(float(BIAS.norm()) * 2**0.5)
    assert row.bias_max_abs == 300
    assert row.bias_ratio is not None
    assert row.bias_ratio > 50 * BIAS_RATIO_LIMIT
    assert found.channels is None


def test_b01_the_exit_codes_of_a_safe_and_a_hostile_checkpoint_differ(tmp_path, capsys) -> None:
    safe = folder_of(tmp_path / "safe", tiny_models.tiny_config("qwen2"))
    hostile = folder_of(tmp_path / "hostile", tiny_models.tiny_config("qwen2"), with_bias(2))
    assert run(["doctor", str(safe), "--text", "none"]) == 0
    assert "no layer at risk by what was read" in capsys.readouterr().out
    assert run(["doctor", str(hostile), "--text", "none"]) == 1
    out = capsys.readouterr().out
    assert "AT RISK (weights): key bias in layer 2" in out
    assert "kvassay assess measures what a format keeps" in out


def test_formats_that_it_prefers_can_be_written(tmp_path) -> None:
    def change(model) -> None:
        with_bias(1, BIAS * 3)(model)
        model.model.layers[0].self_attn.v_proj.weight[5] *= 60

    folder = folder_of(tmp_path / "model", tiny_models.tiny_config("qwen2"), change)
    found = diagnose(str(folder), "python-topics", 96, lambda _: None)
    assert risks(found) == {
        "key bias": (1,),
        "float8 range": (1,),
        "key channels": (1,),
        "value channels": (0,),
    }
    for finding in found.findings:
        for name in (*finding.avoid, *finding.prefer):
            parse_format(name if not name.startswith(("@", "sinks")) else f"int4-g64,{name}")


def test_b02_a_bias_beyond_float8_is_named(tmp_path) -> None:
    found = from_weights(folder_of(tmp_path / "model", tiny_models.tiny_config("qwen2"), with_bias(0, BIAS * 2)))
    finding = next(finding for finding in found.findings if finding.what == "float8 range")
    assert finding.layers == (0,)
    assert "fp8-e4m3" in finding.avoid
    assert "fp8-e4m3-token-head" not in finding.avoid


def test_a_bias_before_a_key_norm_is_no_risk(tmp_path) -> None:
    config = Qwen3Config(
        **{**tiny_models.tiny_config("qwen2").to_dict(), "model_type": "qwen3", "attention_bias": True}
    )
    found = from_weights(folder_of(tmp_path / "model", config, with_bias(1, BIAS * 9)))
    assert found.weights[1].normalises_keys
    assert risks(found) == {}


def test_a_fused_projection_is_read(tmp_path) -> None:
    config = Phi3Config(**{**tiny_models.tiny_config("llama").to_dict(), "model_type": "phi3", "head_dim": 16})
    found = from_weights(folder_of(tmp_path / "model", config))
    assert [row.projection for row in found.weights] == ["qkv_proj"] * 3
    assert all(row.typical_norm and row.bias_norm is None for row in found.weights)


def test_sinks_and_sliding_layers_are_named(tmp_path) -> None:
    found = from_weights(folder_of(tmp_path / "model", tiny_models.tiny_config("gpt_oss")))
    named = {finding.what: finding.layers for finding in found.findings}
    assert named["learned sinks"] == (0, 1, 2)
    assert named["sliding layers"] == (0, 2)
    assert not found.at_risk


def test_b38_formats_that_cannot_serve_the_head_size_are_named(tmp_path) -> None:
    config = tiny_models.tiny_config("llama")
    config.head_dim = 48
    found = from_weights(folder_of(tmp_path / "model", config))
    assert {name for finding in found.findings if finding.what == "shape" for name in finding.avoid} >= {
        "int4-g64",
        "q4_0",
    }


def test_latent_attention_is_refused(tmp_path, capsys) -> None:
    folder = write_config(tmp_path / "mla", model_type="deepseek_v3", kv_lora_rank=512)
    assert "latent attention" in one_line_error(capsys, ["doctor", str(folder)])
    with pytest.raises((GeometryError, ModelError)):
        from_weights(folder)


@pytest.mark.parametrize("damage", ["missing", "cut", "shape"])
def test_damaged_weights_are_one_line(tmp_path, capsys, damage) -> None:
    folder = folder_of(tmp_path / "model", tiny_models.tiny_config("llama"))
    weights = folder / "model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    expected = {
        "missing": "has no model.safetensors",
        "cut": "is damaged",
        "shape": "k_proj.weight of layer 0 has shape",
    }
    assert expected[damage] in one_line_error(capsys, ["doctor", str(folder), "--text", "none"])


def test_the_typical_key_of_the_weights_is_near_that_of_a_text(tmp_path) -> None:
    """A random model has no preferred directions, so estimate and measurement must agree there."""
    folder = folder_of(tmp_path / "model", tiny_models.tiny_config("llama"))
    found = diagnose(str(folder), "python-topics", 128, lambda _: None)
    model = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    keys = model(torch.randint(3, 320, (1, 64)), use_cache=True).cache.layers
    for row, layer in zip(checkpoint_keys(folder, found.geometry), keys, strict=True):
        assert row.typical_norm == pytest.approx(float(layer.keys.norm(dim=-1).square().mean().sqrt()), rel=0.15)


def test_outlier_ratio_is_of_the_head_where_it_is_largest() -> None:
    keys = torch.ones(1, 2, 10, 8)
    keys[0, 1, 3, 5] = -2 * OUTLIER_LIMIT
    assert outlier_ratio(keys) == 2 * OUTLIER_LIMIT


def test_json_holds_every_figure_and_its_threshold(tmp_path, capsys) -> None:
    folder = folder_of(tmp_path / "model", tiny_models.tiny_config("qwen2"), with_bias(1))
    assert run(["doctor", str(folder), "--text", "python-topics", "--tokens", "64", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [layer["layer"] for layer in document["layers"]] == [0, 1, 2]
    assert document["layers"][1]["weights"]["bias_max_abs"] == 300
    assert document["layers"][1]["on_text"]["key_outlier_ratio"] >= OUTLIER_LIMIT
    assert document["thresholds"]["bias_ratio"] == BIAS_RATIO_LIMIT
    assert document["text"]["tokens"] == 64
    assert document["at_risk"] is True
    assert {"what", "basis", "layers", "measured", "reason", "avoid", "prefer"} <= set(document["findings"][0])


def test_a_method_that_rotates_by_itself_is_known_by_its_row(monkeypatch) -> None:
    """A rotated value channel is no risk; whether a codec rotates is said by the method table, for any method."""
    values = {preset.name: parse_format(preset.name).values for preset in PRESETS}
    named = {name for name, spec in values.items() if spec.method == "exl3" and spec.num_bits < 8}
    assert named
    assert methods()["exl3"].rotates
    assert not named & set(doctor._shared_scale_values())
    rows = {name: row._replace(rotates=False) for name, row in methods().items()}
    monkeypatch.setattr(doctor, "method_of", lambda spec: rows[spec.method])
    assert named <= set(doctor._shared_scale_values())
