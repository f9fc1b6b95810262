"""`kvassay scales`: what a checkpoint holds is shown as it is, and what is written is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvassay
from kvassay.cli.app import run
from tests.cli.test_command_line import one_line_error, write_config

SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor"}


def checkpoint(folder: Path, **changes) -> Path:
    """As llm-compressor leaves it; `changes` replace tensors, None removes one."""
    tensors = {
        f"model.layers.{layer}.self_attn.{side}_scale": torch.tensor([0.25 * (layer + 1)], dtype=torch.bfloat16)
        for layer in range(2)
        for side in "kv"
    }
    tensors.update({name.replace("__", "."): tensor for name, tensor in changes.items()})
    folder.mkdir(exist_ok=True)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"kv_cache_scheme": SCHEME}}))
    return folder


def shown(capsys, path: Path) -> dict:
    assert run(["scales", "show", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_show_lists_every_scale_with_what_it_serves(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "c")
    found = shown(capsys, folder)
    assert (found["layout"], found["codec"]) == ("llm-compressor", "fp8-e4m3:tensor")
    assert found["formats"] == ["fp8-e4m3-tensor"]
    assert [(row["layer"], row["role"], row["smallest"], row["largest"]) for row in found["tensors"]] == [
        (0, "k_scale", 0.25, 0.25),
        (0, "v_scale", 0.25, 0.25),
        (1, "k_scale", 0.5, 0.5),
        (1, "v_scale", 0.5, 0.5),
    ]
    assert run(["scales", "show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "llm-compressor layout, scales for fp8-e4m3:tensor in 2 layers" in text
    assert found["sha256"] in text
    assert shown(capsys, folder / "model.safetensors")["sha256"] == found["sha256"]


def test_the_digest_moves_with_every_value_and_name(tmp_path, capsys) -> None:
    digests = {shown(capsys, checkpoint(tmp_path / "a"))["sha256"]}
    for index, changes in enumerate(
        (
            {"model__layers__1__self_attn__v_scale": torch.tensor([0.625])},
            {"model__layers__1__self_attn__v_scale": torch.tensor(0.5)},
            {"model__layers__1__self_attn__q_scale": torch.tensor([1.0])},
        )
    ):
        digests.add(shown(capsys, checkpoint(tmp_path / f"b{index}", **changes))["sha256"])
    assert len(digests) == 4


def test_b26_scales_of_one_are_named(tmp_path, capsys) -> None:
    ones = {f"model__layers__{layer}__self_attn__{side}_scale": torch.ones(1) for layer in range(2) for side in "kv"}
    folder = checkpoint(tmp_path / "c", **ones)
    assert shown(capsys, folder)["all_unit"] is True
    assert run(["scales", "show", str(folder)]) == 0
    assert "every scale is 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.tensor([0.0]), "model.layers.0.self_attn.k_scale has 1 zero of 1 scales"),
        (torch.tensor([-1.0]), "k_scale has 1 negative"),
        (torch.tensor([float("nan")]), "k_scale has 1 NaN"),
        (torch.tensor([1], dtype=torch.int8), "k_scale is torch.int8; expected a floating-point scale"),
        (torch.ones(1 << 21), "k_scale has shape [2097152]; expected a scale"),
    ],
)
def test_b25_unusable_scales_are_one_line_and_exit_code_2(tensor, message, tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "c", model__layers__0__self_attn__k_scale=tensor)
    assert message in one_line_error(capsys, ["scales", "show", str(folder)])


def test_what_is_no_checkpoint_is_named(tmp_path, capsys) -> None:
    assert "does not exist" in one_line_error(capsys, ["scales", "show", str(tmp_path / "none")])
    assert "a file of another kind" in one_line_error(capsys, ["scales", "show", __file__])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "names no KV-cache scales" in one_line_error(capsys, ["scales", "show", str(empty)])
    folder = checkpoint(tmp_path / "c")
    (folder / "model.safetensors").write_bytes(b"\x00" * 40)
    assert "cannot be read as safetensors" in one_line_error(capsys, ["scales", "show", str(folder)])
    for text, message in (("[" * 100_000, "cannot be read as JSON"), ("[]", "holds a JSON list")):
        (folder / "config.json").write_text(text)
        assert message in one_line_error(capsys, ["scales", "show", str(folder)])


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device without an end")
def test_an_endless_config_is_refused(tmp_path, capsys) -> None:
    folder = checkpoint(tmp_path / "c")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    assert "no regular file" in one_line_error(capsys, ["scales", "show", str(folder)])


@pytest.mark.parametrize(
    ("layout", "name", "codec"),
    [
        ("llm-compressor", "fp8-e4m3-tensor", "fp8-e4m3:tensor"),
        ("llm-compressor", "kv=int8:head", "int8:head"),
        ("modelopt", "kv=nvfp4/global=static", "nvfp4/global=static"),
        ("modelopt", "kv=fp8-e4m3:tensor/mean", "fp8-e4m3:tensor/mean"),
    ],
)
def test_written_scales_are_those_of_the_texts(layout, name, codec, tiny_folder, texts, tmp_path, capsys) -> None:
    out = tmp_path / "made" / "here"
    command = ["scales", "write", str(tiny_folder), "--format", name, "--layout", layout, "--out", str(out)]
    where = ["--policy", "least-error", "--text", f"path:{texts}", "--documents", "2", "--tokens", "40", "--json"]
    assert run([*command, *where]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["source"] == "calibrated(mse, n=80 tokens)"
    assert written["layers"] == 2
    found = shown(capsys, out)
    assert found["codec"] == codec
    with safe_open(out / "kv_scales.safetensors", framework="pt") as file:
        assert file.metadata()["kvassay.scale_source"] == written["source"]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    samples = [(texts / Path(each).name).with_suffix(".txt").read_text() for each in written["documents"]]
    ids = [tokenizer(text)["input_ids"][:40] for text in samples]
    expected = kvassay.calibrate(model, name, ids, policy="mse")
    held = load_file(out / "kv_scales.safetensors")
    within = "k_proj.k_scale" if layout == "modelopt" else "k_scale"
    scale = next(iter(array for key, array in expected[1][0][0].parameters.items() if "scale" in key))
    torch.testing.assert_close(held[f"model.layers.1.self_attn.{within}"].flatten(), scale.flatten(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "kivi-4"], "kivi-4 has no static scales to write"),
        (["--format", "kv=int4:tensor"], "the llm-compressor layout has no name for int4:tensor"),
        (["--format", "k=int8:tensor,v=f16"], "stores some keys and values differently"),
        (["--format", "int8-tensor,rope=removed"], "which no checkpoint layout can say"),
        (["--format", "int8-tensor,skip=7"], "names layer 7"),
        (["--format", "int8-tensor", "--policy", "entropy"], "calibration policy 'entropy' is unknown"),
        (["--format", "int8-tensor", "--layout", "other"], "layout"),
        (["--format", "int8-tensor", "--tokens", "5000"], "5000 tokens do not fit the model's context of 4096"),
        (["--format", "int8-tensor", "--documents", "0"], "documents"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_model_is_read(arguments, message, tmp_path, capsys) -> None:
    """The model here has no weights, so reading it would be another error."""
    model = write_config(tmp_path / "m")
    assert message in one_line_error(capsys, ["scales", "write", str(model), "--out", str(tmp_path / "o"), *arguments])
    assert not (tmp_path / "o").exists()


def test_a_folder_that_has_scales_and_a_file_are_refused(tmp_path, capsys) -> None:
    model = write_config(tmp_path / "m")
    folder = checkpoint(tmp_path / "c")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = ["scales", "write", str(model), "--format", "int8-tensor", "--out"]
    assert "'c' has scales already" in one_line_error(capsys, [*command, str(folder)])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "is no folder" in one_line_error(capsys, [*command, str(folder / "config.json")])
