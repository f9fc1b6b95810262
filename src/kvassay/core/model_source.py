"""What a user's model name means: a built-in model, a folder, a GGUF file or a hub id. No torch, no network.

`geometry_of` reads the cache geometry of any of them from a few kilobytes of metadata.
"""

from __future__ import annotations

import difflib
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvassay.core.bounded_json import json_size_fault
from kvassay.core.builtin_models import BUILTIN_MODELS, GgufParts, packaged_files
from kvassay.core.geometry import CacheGeometry, geometry_from_config
from kvassay.core.gguf_header import geometry_from_gguf
from kvassay.core.hub import HubName, fetch_hub_config, parse_hub_name
from kvassay.core.regular_file import read_regular
from kvassay.errors import GeometryError, ModelError

__all__ = ["BUILTIN_MODELS", "ModelSource", "SourceKind", "geometry_of", "read_config", "resolve_model"]


MAX_CONFIG_NBYTES = 16 << 20


class SourceKind(StrEnum):
    FOLDER = "folder"
    """A transformers folder: config.json, safetensors, tokenizer."""
    GGUF = "gguf"
    HUB = "hub"


class ModelSource(NamedTuple):
    """Where a model comes from: one of `path` (a folder or file), `hub` and `parts`; the others are None."""

    name: str
    """As the user wrote it."""
    kind: SourceKind
    path: Path | None
    hub: HubName | None
    parts: GgufParts | None = None
    """A GGUF file in parts, which whoever needs the whole file puts together (`builtin_models.joined_gguf`)."""


def resolve_model(name: str) -> ModelSource:
    """Find what `name` stands for; raises ModelError if it stands for nothing. A hub id is not looked up here.

    A built-in name wins over a folder of the same name; write `./smollm2-135m` for the folder.
    """
    if not name.strip() or not name.isprintable():
        raise ModelError(f"model {name!r} is empty or has unprintable characters; {_expected()}")
    if (builtin := BUILTIN_MODELS.get(name.lower())) is not None:
        files = packaged_files(name, builtin)
        if builtin.joined_sha256 is None:
            return ModelSource(name, SourceKind.GGUF, files[0], None)
        parts = GgufParts(files, builtin.joined_sha256, builtin.install)
        return ModelSource(name, SourceKind.GGUF, None, None, parts)
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
            path = source.parts.header_path if source.parts else source.path
            assert path is not None
            return geometry_from_gguf(path)
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
        data = read_regular(path, MAX_CONFIG_NBYTES)
        if fault := json_size_fault(data):
            raise GeometryError(f"{str(path)!r} holds {fault}; is it a config?")
        config = json.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:200]
        raise GeometryError(f"{str(path)!r} cannot be read as JSON: {reason}") from error
    if not isinstance(config, dict):
        raise GeometryError(f"{str(path)!r} holds no JSON object; expected a transformers config")
    return cast(dict[str, Any], config)


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
