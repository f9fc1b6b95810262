"""Loads a model for measurement: float32, on the CPU, in eval mode, through transformers' own classes.

Linear layers can be quantized after loading (`weights`); all else stays float32.

A model is a built-in name, a transformers folder, a GGUF file or a hub id. Everything that can be refused from metadata
is refused before weights are read, and what identifies the model is hashed, so that evidence names what was run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvassay.core.builtin_models import joined_gguf
from kvassay.core.cache_folder import remembered_sha256
from kvassay.core.clauses.subject import Weights
from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.core.geometry import CacheGeometry
from kvassay.core.gguf_header import read_gguf_header
from kvassay.core.hub import fetch_hub_config, fetch_hub_model
from kvassay.core.model_source import ModelSource, SourceKind, read_config, resolve_model
from kvassay.core.regular_file import require_regular_files
from kvassay.engines.transformers.gguf_conversion import converted_gguf
from kvassay.engines.transformers.loading_checks import (
    attention_implementation,
    check_cache,
    check_weights,
    checked_config,
    first_line,
)
from kvassay.engines.transformers.loading_quiet import quiet_transformers
from kvassay.engines.transformers.quantized_weights import QuantizedWeights, quantize_weights, require_weights
from kvassay.errors import ModelError

__all__ = ["LoadedModel", "ModelHashes", "ModelSource", "identify_model", "load_model", "resolve_model"]

_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
"""Config fields that change without the model changing."""


class ModelHashes(NamedTuple):
    """SHA-256 digests (64 hexadecimal digits) of what the model is made of."""

    weights: str
    """Of the weight file; with several files, of the canonical JSON of `weight_files`. For a GGUF file it is the
    digest of that file, not of its conversion."""
    weight_files: dict[str, str]
    tokenizer: str
    """Of the fast tokenizer's canonical JSON (vocabulary, merges, normalizer, special tokens)."""
    config: str
    """Of the canonical JSON of config.json without paths, library version and storage type."""


class IdentifiedModel(NamedTuple):
    """What names a model, without its weights in memory."""

    source: ModelSource
    hashes: ModelHashes
    revision: str | None
    tokenizer: Any


class LoadedModel(NamedTuple):
    model: Any
    """A transformers causal language model: float32, CPU, eval mode, no gradients."""
    tokenizer: Any
    geometry: CacheGeometry
    source: ModelSource
    hashes: ModelHashes
    revision: str | None
    """The commit, for models of the hub."""
    stored_weights: str
    """How the weights lie on disk, for example `GGUF MOSTLY_Q4_1` or `safetensors BF16`."""
    parameters: int
    quantized_weights: QuantizedWeights | None
    """None where the stored weights run, in float32."""


def load_model(
    source: ModelSource | str, *, announce: Callable[[str], None] | None = None, weights: Weights = "stored"
) -> LoadedModel:
    """Load a model and its tokenizer; `announce` gets a line of text before a slow step.

    `weights` other than `stored` quantizes the linear layers after they were loaded and checked.

    Raises ModelError for a model that is missing, damaged or of an unsupported architecture, MissingExtraError if a
    package is missing that this kind of source needs.
    """
    require_weights(weights)
    if isinstance(source, str):
        source = resolve_model(source)
    say = announce or _say_nothing
    source = _whole_file(source, say)
    folder = model_folder(source, say)
    config, geometry = checked_config(folder, source.name)
    loaded_files = _weight_files(folder, source.name)
    tokenizer = _load_tokenizer(folder, source.name)
    model = _load_weights(folder, config, source.name)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > vocabulary:
        raise ModelError(
            f"{source.name}: the tokenizer has {tokenizer.vocab_size} tokens and the model {vocabulary} embeddings; "
            "expected a tokenizer that belongs to the model"
        )
    check_cache(model, geometry, source.name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    quantized = None
    if weights != "stored":
        say(f"quantizing the weights of {source.name} to {weights}")
        quantized = quantize_weights(model, weights, source.name)
    hashed_files = _hashed_files(source, loaded_files)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        geometry=geometry,
        source=source,
        hashes=_hashes(folder, hashed_files, tokenizer),
        revision=folder.name if source.kind is SourceKind.HUB else None,
        stored_weights=_stored_weights(source, hashed_files),
        parameters=parameters,
        quantized_weights=quantized,
    )


def identify_model(source: ModelSource | str, *, announce: Callable[[str], None] | None = None) -> IdentifiedModel:
    """Hash what a model is made of as `load_model` does, and read its tokenizer; raises ModelError as that does."""
    if isinstance(source, str):
        source = resolve_model(source)
    say = announce or _say_nothing
    source = _whole_file(source, say)
    folder = model_folder(source, say)
    checked_config(folder, source.name)
    tokenizer = _load_tokenizer(folder, source.name)
    hashes = _hashes(folder, _hashed_files(source, _weight_files(folder, source.name)), tokenizer)
    return IdentifiedModel(source, hashes, folder.name if source.kind is SourceKind.HUB else None, tokenizer)


def tokenizer_sha256(tokenizer: Any) -> str:
    """Digest of what turns text into token ids. Truncation and padding, which are settings of a call, stay out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return sha256_json({"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()})
    state = json.loads(backend.to_str())
    state.pop("truncation", None)
    state.pop("padding", None)
    return sha256_bytes(json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())


def model_folder(source: ModelSource, say: Callable[[str], None]) -> Path:
    """The transformers folder behind a source, with unsupported models refused before their weights are fetched."""
    if source.kind is SourceKind.HUB:
        assert source.hub is not None
        checked_config(fetch_hub_config(source.hub), source.name)
        return fetch_hub_model(source.hub, say)
    path = _whole_file(source, say).path
    assert path is not None
    if source.kind is SourceKind.FOLDER:
        try:
            require_regular_files(path)
        except OSError as error:
            raise ModelError(f"{source.name}: {error.filename!r} cannot be read: {error.strerror}") from error
    return converted_gguf(path, say) if source.kind is SourceKind.GGUF else path


def _whole_file(source: ModelSource, say: Callable[[str], None]) -> ModelSource:
    """The same source with a path, if it is a file in parts."""
    return source._replace(path=joined_gguf(source.parts, say), parts=None) if source.parts else source


def _weight_files(folder: Path, name: str) -> list[Path]:
    files = sorted(folder.glob("model*.safetensors"))
    if files:
        return files
    other = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for file in folder.glob(pattern))
    found = f"only {other[0]}" if other else "no weights"
    raise ModelError(
        f"{name}: {str(folder)!r} has {found}; expected model.safetensors "
        "(pickled weights can run code and are not read)"
    )


def _hashed_files(source: ModelSource, weight_files: list[Path]) -> list[Path]:
    """The files that name the weights: a GGUF file itself, and not its conversion."""
    return [source.path] if source.kind is SourceKind.GGUF and source.path else weight_files


def _load_tokenizer(folder: Path, name: str) -> Any:
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{name}: its tokenizer cannot be loaded ({first_line(error)}); expected tokenizer.json beside config.json"
        ) from error


def _load_weights(folder: Path, config: Any, name: str) -> Any:
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation=attention_implementation(config),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:
        raise ModelError(
            f"{name}: its weights cannot be loaded ({first_line(error)}); expected complete safetensors files that "
            "match config.json, and enough memory for float32 weights"
        ) from error
    model, loading = loaded
    check_weights(model, loading, name)
    model.requires_grad_(False)
    return model.eval()


def _hashes(folder: Path, files: list[Path], tokenizer: Any) -> ModelHashes:
    weight_files = {file.name: remembered_sha256(file) for file in files}
    digests = list(weight_files.values())
    config = {key: value for key, value in read_config(folder).items() if key not in _VOLATILE}
    return ModelHashes(
        weights=digests[0] if len(digests) == 1 else sha256_json(weight_files),
        weight_files=weight_files,
        tokenizer=tokenizer_sha256(tokenizer),
        config=sha256_json(config),
    )


def _stored_weights(source: ModelSource, files: list[Path]) -> str:
    if source.kind is SourceKind.GGUF:
        from gguf import LlamaFileType  # only GGUF files need the package

        number = read_gguf_header(files[0]).metadata.get("general.file_type")
        names = {int(kind): kind.name for kind in LlamaFileType}
        return f"GGUF {names.get(number, 'of an unnamed type') if isinstance(number, int) else 'of an unnamed type'}"
    dtypes: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            dtypes.update(tensors.get_slice(name).get_dtype() for name in tensors.keys())  # noqa: SIM118
    return f"safetensors {' and '.join(sorted(dtypes))}"


def _say_nothing(_line: str) -> None:
    return
