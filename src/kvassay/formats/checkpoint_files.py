"""Named tensors and configs of a checkpoint folder: one safetensors file or several with an index. Reads no weights."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvassay.core.bounded_json import json_size_fault
from kvassay.core.regular_file import open_regular, read_regular
from kvassay.errors import CalibrationError

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
SCALE_FILE = "kv_scales.safetensors"
"""Where scales are written: a file of their own, so that no weight is rewritten."""

MAX_JSON_NBYTES = 1 << 26
"""An index names every tensor: 10 MB in the largest models. Beyond it, it is no config."""
MAX_SCALE_ELEMENTS = 1 << 20
"""Of one scale or mean; real ones have at most a value for each channel of each KV head."""

SOURCE_KEY = "kvassay.scale_source"
"""Metadata of `SCALE_FILE`: how its scales were chosen."""

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def config_folder(path: Path) -> Path:
    """Where the configs of a checkpoint are: the folder itself, or that of one of its files."""
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".safetensors":
        return path.parent
    found = "is a file of another kind" if path.exists() else "does not exist"
    raise CalibrationError(f"{str(path)!r} {found}; expected a checkpoint folder, or a .safetensors file in one")


def tensor_files(path: Path) -> dict[str, Path]:
    """File of every tensor, by name: from the index where there is one, and from the headers of other files.

    Of one file where `path` is a file.
    """
    folder = config_folder(path)
    if folder != path:
        with _opened(path) as file:
            return dict.fromkeys(file.keys(), path)
    found: dict[str, Path] = {}
    indexed: set[str] = set()
    for name, file in _weight_map(folder).items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CalibrationError(f"{INDEX} places {name} in {file!r}; expected a .safetensors file of its own folder")
        found[name] = folder / file
        indexed.add(file)
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in indexed:
            with _opened(path) as file:
                found.update((name, path) for name in file.keys())  # noqa: SIM118  (it is no dict)
    if not found:
        raise CalibrationError(f"{folder.name!r} has no safetensors file; expected a checkpoint folder")
    return found


def read_tensors(files: Mapping[str, Path], names: Iterable[str]) -> dict[str, Tensor]:
    """Float tensors by name, as float32. Raises CalibrationError for a name that its file does not hold."""
    tensors: dict[str, Tensor] = {}
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(files[name], []).append(name)
    for path, wanted in by_file.items():
        with _opened(path) as file:
            held = set(file.keys())
            for name in wanted:
                if name not in held:
                    raise CalibrationError(f"{name} is not in {path.name}, where {INDEX} places it")
                shape = file.get_slice(name).get_shape()
                if math.prod(shape) > MAX_SCALE_ELEMENTS:
                    raise CalibrationError(f"{name} has shape {shape}; expected a scale, or a mean of each channel")
                tensor = file.get_tensor(name)
                if tensor.dtype not in _FLOATS:
                    raise CalibrationError(f"{name} is {tensor.dtype}; expected a floating-point scale")
                tensors[name] = tensor.to(torch.float32)
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        data = read_regular(path, MAX_JSON_NBYTES)
        if fault := json_size_fault(data):
            raise CalibrationError(f"{path.name} has {fault}; is it a config?")
        content = json.loads(data.decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CalibrationError(f"{path.name} cannot be read as JSON: {reason}") from error
    if not isinstance(content, dict):
        raise CalibrationError(f"{path.name} holds a JSON {type(content).__name__}; expected an object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that an interrupted write leaves the old one."""
    waiting = path.with_name(path.name + ".part")
    waiting.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(waiting, path)


def write_tensors(folder: Path, tensors: dict[str, Tensor], source: str) -> None:
    """Write `SCALE_FILE`, with `source` in its metadata, and enter its tensors in the index, where there is one."""
    waiting = folder / (SCALE_FILE + ".part")
    save_file(tensors, waiting, metadata={"format": "pt", SOURCE_KEY: source})
    os.replace(waiting, folder / SCALE_FILE)
    index = read_json(folder / INDEX)
    if index:
        weight_map = {**_weight_map(folder), **dict.fromkeys(tensors, SCALE_FILE)}
        write_json(folder / INDEX, {**index, "weight_map": weight_map})


def _weight_map(folder: Path) -> dict[str, Any]:
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map", {})
    if not isinstance(weight_map, dict):
        raise CalibrationError(f"weight_map of {INDEX} is a {type(weight_map).__name__}; expected an object")
    return weight_map


def _opened(path: Path) -> Any:
    try:
        open_regular(path).close()
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{path.name} cannot be read as safetensors: {error}") from error
