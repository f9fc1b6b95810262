"""GGUF files: converted once, exactly, atomically, and never taken for whole when they are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.modeling_gguf_pytorch_utils as gguf_loading
from transformers import AutoModelForCausalLM

from kvassay.core.builtin_models import BUILTIN_MODELS, BuiltinModel
from kvassay.core.digest import sha256_bytes, sha256_file
from kvassay.core.geometry import geometry_from_config
from kvassay.core.gguf_header import geometry_from_gguf
from kvassay.core.model_source import geometry_of, resolve_model
from kvassay.core.tasks.settings import TaskSettings
from kvassay.engines.transformers.loading import load_model, model_folder
from kvassay.errors import MissingExtraError, ModelError
from kvassay.workloads.corpus import Corpus, Document
from kvassay.workloads.excerpts import text_documents
from kvassay.workloads.tasks.items import task_items
from kvassay.workloads.tokenizing import bos_ids, token_ids

from .model_folders import write_gguf

LOAD = "import sys; from kvassay.engines.transformers.loading import load_model; m = load_model(sys.argv[1]);"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def converted(cache: Path) -> Path:
    (folder,) = (cache / "models").glob("gguf-*")
    return folder


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if ".part-" in path.name]


def run(program: str, file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KVASSAY_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, env=environment, timeout=120
    )


def test_conversion_is_exact_and_done_once(file: Path, own_cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    loaded = load_model(str(file), announce=said.append)
    assert len(said) == 1
    assert "once" in said[0]
    assert capfd.readouterr() == ("", "")
    assert loaded.geometry == geometry_from_gguf(file)
    assert loaded.hashes.weights == sha256_file(file)
    assert loaded.hashes.weight_files == {"tiny.gguf": sha256_file(file)}

    direct = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    ids = torch.arange(10, 60)[None]
    with torch.inference_mode():
        assert torch.equal(direct(ids).logits, loaded.model(ids).logits)

    again = load_model(str(file), announce=said.append)
    assert len(said) == 1
    assert again.hashes == loaded.hashes
    assert leftovers(own_cache) == []


def test_the_key_is_the_content(file: Path, own_cache: Path, tmp_path: Path) -> None:
    load_model(str(file))
    said: list[str] = []
    load_model(str(file.rename(tmp_path / "renamed.gguf")), announce=said.append)
    assert said == []
    load_model(str(write_gguf(tmp_path / "renamed.gguf", seed=1)), announce=said.append)
    assert len(said) == 1
    assert len(list((own_cache / "models").glob("gguf-*"))) == 2


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "tokenizer", "manifest", "manifest gone"])
def test_a_damaged_conversion_is_made_again(damage: str, file: Path, own_cache: Path) -> None:
    whole = load_model(str(file))
    folder = converted(own_cache)
    weights, manifest = folder / "model.safetensors", folder / "conversion.json"
    data = bytearray(weights.read_bytes())
    match damage:
        case "byte":
            data[-1] ^= 1
            weights.write_bytes(data)
        case "cut":
            weights.write_bytes(data[:-100])
        case "gone":
            weights.unlink()
        case "tokenizer":
            (folder / "tokenizer.json").write_text("{}")
        case "manifest":
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": {}}))
        case _:
            manifest.unlink()
    said: list[str] = []
    mended = load_model(str(file), announce=said.append)
    assert ["damaged" in line for line in said] == [True]
    assert torch.equal(mended.model.lm_head.weight, whole.model.lm_head.weight)
    assert leftovers(own_cache) == []


def test_a_process_that_dies_leaves_nothing_that_counts(file: Path, own_cache: Path) -> None:
    died = run("import os; os.rename = lambda *_: os._exit(9);" + LOAD, file, own_cache)
    assert died.returncode == 9, died.stderr
    assert len(leftovers(own_cache)) == 1
    assert list((own_cache / "models").glob("gguf-*")) == []
    load_model(str(file))
    assert leftovers(own_cache) == []


def test_two_processes_at_once(file: Path, own_cache: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = LOAD + "print(m.hashes.config)"
    command = [sys.executable, "-c", program, str(file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers[0] == answers[1] != ""
    assert len(list((own_cache / "models").glob("gguf-*"))) == 1
    assert leftovers(own_cache) == []


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(file: Path, own_cache: Path) -> None:
    """The limit on a file's size stands for the disk: writing the weights fails half-way."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000));"
        "from kvassay.errors import ModelError\n"
        "try:\n    import sys; from kvassay.engines.transformers.loading import load_model; load_model(sys.argv[1])\n"
        "except ModelError as error:\n    print(error)"
    )
    result = run(program, file, own_cache)
    assert "could not be converted into" in result.stdout, result.stderr
    assert "KVASSAY_CACHE" in result.stdout
    assert result.stdout.count("\n") == 1
    assert leftovers(own_cache) == []
    assert list((own_cache / "models").glob("gguf-*")) == []


def test_a_cache_folder_that_cannot_be_written(file: Path, own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot be written .*KVASSAY_CACHE"):
        load_model(str(file))


def test_files_that_are_no_usable_model(tmp_path: Path, own_cache: Path) -> None:
    faulty = tmp_path / "faulty.gguf"
    faulty.write_bytes(b"not a model at all, but long enough")
    with pytest.raises(ModelError, match="not a GGUF file"):
        load_model(str(faulty))
    whole = write_gguf(faulty).read_bytes()
    faulty.write_bytes(whole[: len(whole) - 4000])
    with pytest.raises(ModelError, match=r"faulty\.gguf") as caught:
        load_model(str(faulty))
    assert "\n" not in str(caught.value)
    assert list((own_cache / "models").glob("gguf-*")) == []


def test_without_the_gguf_package(file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_loading, "is_gguf_available", lambda: False)
    with pytest.raises(MissingExtraError, match=r"kvassay\[torch\]"):
        load_model(str(file))


def test_a_conversion_with_another_cache_shape_is_refused(
    file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvassay.engines.transformers import gguf_conversion

    read = gguf_conversion.read_config
    monkeypatch.setattr(gguf_conversion, "read_config", lambda folder: {**read(folder), "head_dim": 4})
    with pytest.raises(ModelError, match="another cache shape"):
        load_model(str(file))
    assert list((own_cache / "models").glob("gguf-*")) == []


@pytest.fixture
def packaged(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny file in three part packages on sys.path, as the built-in model `tiny`; returns the whole file."""
    content = file.read_bytes()
    size = len(content) // 3 + 1
    packages = tuple(f"kvassay_tiny_part{number}" for number in (1, 2, 3))
    for number, package in enumerate(packages):
        folder = tmp_path / "site" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / f"tiny.gguf.part{number:02}").write_bytes(content[number * size : (number + 1) * size])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    tiny = BuiltinModel("tiny-weights", "none", packages, "tiny.gguf.part*", sha256_file(file))
    monkeypatch.setitem(BUILTIN_MODELS, "tiny", tiny)
    return file


def test_a_model_in_part_packages_is_the_model_of_the_whole_file(packaged: Path, own_cache: Path) -> None:
    assert geometry_of("tiny") == geometry_from_gguf(packaged)
    assert not own_cache.exists()
    said: list[str] = []
    loaded = load_model("tiny", announce=said.append)
    assert [line.split()[0] for line in said] == ["putting", "converting"]
    assert loaded.source.name == "tiny"
    whole = load_model(str(packaged), announce=said.append)
    assert loaded.hashes == whole.hashes
    assert loaded.stored_weights == whole.stored_weights
    assert torch.equal(loaded.model.lm_head.weight, whole.model.lm_head.weight)
    assert model_folder(resolve_model("tiny"), said.append) == converted(own_cache)
    assert load_model("tiny", announce=said.append).hashes == whole.hashes
    assert len(said) == 2, "one file put together and one conversion, whoever asks for it and how often"


@pytest.mark.parametrize("bos", [True, False])
def test_the_header_decides_whether_texts_begin_with_bos(bos: bool, tmp_path: Path, own_cache: Path) -> None:
    """A model trained with BOS is another model without it, so the flag must outlive conversion and saving."""
    tokenizer = load_model(str(write_gguf(tmp_path / "tiny.gguf", bos=bos))).tokenizer
    assert bos_ids(tokenizer) == ((0,) if bos else ())
    text = "The river runs past the old mill to the sea. " * 9
    (document,) = text_documents(
        Corpus("own", (Document("a", text, "text"),), "own", "1", "none", sha256_bytes(text.encode())),
        tokenizer,
        documents=1,
        prompt_tokens=20,
        scored_tokens=10,
        seed=0,
    )
    assert document.token_ids == (bos_ids(tokenizer) + token_ids(tokenizer, text))[:30]
    (item,) = task_items(tokenizer, "recall", TaskSettings("recall", context_lines=3), 0, range(1))
    assert (item.prompt_ids[0] == 0) is bos
    assert 0 not in item.prompt_ids[1:]


@pytest.mark.model
def test_smollm2_loads_and_knows_english() -> None:
    """R100: the built-in model is a real one. Its conversion stays in the user's cache."""
    loaded = load_model("smollm2-135m")
    assert loaded.geometry.num_layers == 30
    assert geometry_from_config(loaded.model.config.to_dict()) == loaded.geometry
    assert loaded.hashes.weights == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        token = int(loaded.model(ids).logits[0, -1].argmax())
    assert loaded.tokenizer.decode(token) == " Paris"


def test_a_large_file_is_converted_in_a_process_of_its_own(
    file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same files, same errors; the peak memory of a conversion ends with its process."""
    from kvassay.engines.transformers import gguf_conversion

    here = load_model(str(file)).hashes
    shutil.rmtree(own_cache)
    monkeypatch.setattr(gguf_conversion, "_APART_ABOVE_NBYTES", 0)
    assert load_model(str(file)).hashes == here
    with pytest.raises(ModelError, match="cannot be loaded by transformers"):
        gguf_conversion._convert_apart(file.with_name("absent.gguf"), own_cache)


@pytest.mark.model
@pytest.mark.slow
def test_gemma_is_another_shape_and_needs_its_bos() -> None:
    """R100: the second real model, from its part packages. What is put together stays in the user's cache."""
    builtin = BUILTIN_MODELS["gemma3-270m"]
    if missing := [package for package in builtin.packages if find_spec(package) is None]:
        pytest.skip(f"gemma3-270m is not installed (no package {missing[0]}): pip install {builtin.install}")
    geometry = geometry_of("gemma3-270m")
    loaded = load_model("gemma3-270m")
    assert loaded.geometry == geometry == geometry_from_config(loaded.model.config.to_dict())
    assert {(one.kv_heads, one.head_dim, one.value_dim) for one in geometry.layers} == {(1, 256, 256)}
    assert [one.sliding_window for one in geometry.layers] == ([512] * 5 + [None]) * 3
    assert loaded.hashes.weights == builtin.joined_sha256
    assert loaded.stored_weights == "GGUF MOSTLY_Q4_K_M"

    start = bos_ids(loaded.tokenizer)
    assert start == (2,)
    text = token_ids(loaded.tokenizer, KNOWN_TEXT)
    with_bos, without = (_nats_per_token(loaded.model, (*begin, *text), len(text) - 1) for begin in (start, ()))
    assert with_bos < 2.5
    assert without > with_bos + 0.5


KNOWN_TEXT = (
    "Paris is the capital and largest city of France. It lies on the river Seine, in the north of the country. "
    "The Eiffel Tower was built there for the World's Fair of 1889, and the Louvre is one of the most visited museums "
    "in the world."
)


@torch.inference_mode()
def _nats_per_token(model: Any, ids: tuple[int, ...], scored: int) -> float:
    """Mean negative log-likelihood of the last `scored` tokens."""
    row = torch.tensor(ids)[None]
    logits = model(row).logits[0, -scored - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, row[0, -scored:]))
