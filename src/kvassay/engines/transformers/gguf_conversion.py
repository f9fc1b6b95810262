"""Converts a GGUF file once to a float32 transformers folder in the user's cache.

transformers parses a GGUF file in pure Python and dequantizes every tensor, which takes from 20 seconds to minutes;
the converted folder loads in seconds. It is keyed by the file's SHA-256, put in place by one rename, and carries a
manifest of sizes and digests, so that an interrupted or damaged conversion is never taken for a whole one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock, Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvassay.core.cache_folder import cache_folder, remembered_sha256
from kvassay.core.digest import sha256_file
from kvassay.core.geometry import geometry_from_config
from kvassay.core.gguf_header import config_from_gguf, read_gguf_header
from kvassay.core.model_source import read_config
from kvassay.engines.transformers.loading_checks import check_weights, first_line
from kvassay.engines.transformers.loading_quiet import quiet_transformers
from kvassay.errors import GeometryError, KvassayError, MissingExtraError, ModelError

CONVERSION = "kvassay.conversion/1"
"""Raise the number when converted folders of older versions must not be used any more."""

_MANIFEST = "conversion.json"
_APART_ABOVE_NBYTES = 16 << 20
"""Larger files are converted in a process of their own, which costs seconds to start and gives its memory back."""
_WAIT_SECONDS = 1800.0


def converted_gguf(path: Path, announce: Callable[[str], None]) -> Path:
    """A transformers folder with the weights of `path` in float32 and its tokenizer.

    Converts on first use, and again if the folder in the cache is damaged; `announce` gets a line before each slow
    step. Two processes may ask at once: one converts, the other waits. Raises ModelError if the file is no usable
    decoder, MissingExtraError without the `gguf` package.
    """
    try:
        header = read_gguf_header(path)
        geometry = geometry_from_config(config_from_gguf(header, path.name))
    except GeometryError as error:
        raise ModelError(f"{path.name} is not supported: {error}") from error
    if header.metadata.get("split.count") not in (None, 0, 1):
        raise ModelError(f"{path.name} is one part of a split GGUF file; merge them first (llama-gguf-split --merge)")
    source_sha256 = remembered_sha256(path)
    folder = cache_folder() / "models" / f"gguf-{source_sha256}-v{CONVERSION.rpartition('/')[2]}"
    if is_whole(folder, source_sha256):
        return folder
    with _locked(folder, announce):
        if is_whole(folder, source_sha256):
            return folder
        if folder.exists():
            announce(f"the converted copy of {path.name} in the cache is damaged; converting again")
        else:
            announce(f"converting {path.name} to float32 safetensors, once; this takes from 20 seconds to minutes")
        _clear(folder)
        with _temporary_folder(folder) as temporary:
            if path.stat().st_size > _APART_ABOVE_NBYTES:
                _convert_apart(path, temporary)
            else:
                _convert(path, temporary)
            converted = geometry_from_config(read_config(temporary))
            if converted != geometry:
                raise ModelError(
                    f"{path.name}: transformers reads another cache shape from this file than its header states; "
                    f"expected {geometry.num_layers} layers of {geometry.layers[0]}, got {converted.layers[0]}"
                )
            _write_manifest(temporary, path, source_sha256)
            os.rename(temporary, folder)
    return folder


def is_whole(folder: Path, source_sha256: str) -> bool:
    """Whether `folder` holds every file of its manifest, with the sizes and digests written there."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        if manifest["schema"] != CONVERSION or manifest["source_sha256"] != source_sha256:
            return False
        files = manifest["files"]
        return any(name.endswith(".safetensors") for name in files) and all(
            (folder / name).stat().st_size == entry["nbytes"] and remembered_sha256(folder / name) == entry["sha256"]
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert_apart(path: Path, folder: Path) -> None:
    """Convert in a process of its own: its peak memory, several times the weights, ends with it."""
    command = [
        sys.executable,
        "-c",
        f"from {__name__} import convert_in_child; convert_in_child()",
        str(path),
        str(folder),
    ]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return
    try:
        error = json.loads(child.stdout)
    except ValueError:
        last = (child.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ModelError(f"{path.name} could not be converted: the converter ended with {last[:240]!r}") from None
    raise {"MissingExtraError": MissingExtraError}.get(error["type"], ModelError)(error["message"])


def convert_in_child() -> None:
    """What the converter's process runs; an error goes to stdout as JSON."""
    try:
        _convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except KvassayError as error:
        print(json.dumps({"type": type(error).__name__, "message": str(error)}))
        sys.exit(1)


def _convert(path: Path, folder: Path) -> None:
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
            )
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except ImportError as error:
        raise MissingExtraError(
            f"reading a GGUF file needs more packages ({first_line(error)}); "
            "install them with: pip install 'kvassay[torch]'"
        ) from error
    except Exception as error:
        raise ModelError(f"{path.name} cannot be loaded by transformers ({first_line(error)})") from error
    model, loading = loaded
    check_weights(model, loading, path.name)
    # The weights are plain now; save_pretrained refuses a model that still says it is quantized.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    try:
        with quiet_transformers():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except Exception as error:  # safetensors has an error of its own beside OSError
        raise ModelError(
            f"{path.name} could not be converted into {str(folder.parent)!r} ({first_line(error)}); "
            "the folder must be writable and have room for the float32 weights; KVASSAY_CACHE names another one"
        ) from error


def _write_manifest(folder: Path, source: Path, source_sha256: str) -> None:
    files = {
        file.name: {"nbytes": file.stat().st_size, "sha256": sha256_file(file)} for file in sorted(folder.iterdir())
    }
    manifest = {
        "schema": CONVERSION,
        "source": source.name,
        "source_sha256": source_sha256,
        "transformers": transformers.__version__,
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _locked(folder: Path, announce: Callable[[str], None]) -> Iterator[None]:
    """One converter at a time. The operating system frees the lock of a process that dies."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            announce("another process is converting this model; waiting for it")
            lock.acquire(timeout=_WAIT_SECONDS)
    except Timeout as error:
        raise ModelError(
            f"another process has been converting this model for {_WAIT_SECONDS / 60:.0f} minutes; end it and try again"
        ) from error
    except OSError as error:
        raise ModelError(
            f"the cache folder {str(cache_folder())!r} cannot be written ({first_line(error)}); "
            "KVASSAY_CACHE names another one"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """Remove a damaged conversion and what interrupted ones left behind; called under the lock."""
    for old in (folder, *folder.parent.glob(f".{folder.name}.part-*")):
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.part-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
