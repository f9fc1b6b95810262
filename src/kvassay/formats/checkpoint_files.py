"""Named tensors and configs of a checkpoint folder: one safetensors file or several with an index. Reads no weights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvassay.errors import CalibrationError

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
SCALE_FILE = "kv_scales.safetensors"
"""Where scales are written: a file of their own, so that no weight is rewritten."""

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def tensor_files(folder: Path) -> dict[str, Path]:
    """File of every tensor, by name: from the index where there is one, and from the headers of other files."""
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
                tensor = file.get_tensor(name)
                if tensor.dtype not in _FLOATS:
                    raise CalibrationError(f"{name} is {tensor.dtype}; expected a floating-point scale")
                tensors[name] = tensor.to(torch.float32)
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CalibrationError(f"{path.name} holds a JSON {type(content).__name__}; expected an object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that an interrupted write leaves the old one."""
    waiting = path.with_name(path.name + ".part")
    waiting.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(waiting, path)


def write_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write `SCALE_FILE` and enter its tensors in the index, where there is one."""
    waiting = folder / (SCALE_FILE + ".part")
    save_file(tensors, waiting, metadata={"format": "pt"})
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
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CalibrationError(f"{path.name} cannot be read as safetensors: {error}") from error
