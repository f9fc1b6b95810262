"""Model files from the Hugging Face hub, through `huggingface_hub`: the local cache first, then the network, once.

Weights are taken as safetensors only. Requests have a time limit, so a machine that is cut off from the network gets an
answer within seconds. `huggingface_hub` comes with the torch extra and is imported only when a hub id is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.core.regular_file import read_regular
from kvassay.errors import MissingExtraError, ModelError

MAX_INDEX_NBYTES = 64 << 20
"""An index names every tensor: 10 MB in the largest models."""

_NAME = re.compile(r"(?P<repository>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,128}))?", re.ASCII)
_TIMEOUT_SECONDS = 10.0
_TOKENIZER_FILES = re.compile(
    r"tokenizer.*|vocab.*|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template.*"
)
_WEIGHT_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")


class HubName(NamedTuple):
    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def parse_hub_name(name: str) -> HubName | None:
    """`org/name` or `org/name@revision`; None if `name` does not read like that."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        return None
    return HubName(match["repository"], match["revision"])


def fetch_hub_config(name: HubName) -> Path:
    """A folder with `config.json` of the repository. Raises ModelError if it cannot be had."""
    return _cached(name, lambda folder: (folder / "config.json").is_file()) or _download(
        name, lambda file: file == "config.json", announce=None
    )


def fetch_hub_model(name: HubName, announce: Callable[[str], None]) -> Path:
    """A folder with config, tokenizer and safetensors weights. Raises ModelError if it cannot be had.

    The folder's name is the commit. A copy that is complete in the hub cache is used without asking the network.
    """
    return _cached(name, _is_complete) or _download(name, _is_model_file, announce)


def _is_model_file(file: str) -> bool:
    return (
        file in ("config.json", "generation_config.json")
        or _TOKENIZER_FILES.fullmatch(file) is not None
        or _WEIGHT_FILES.fullmatch(file) is not None
        or ("/" not in file and file.endswith(".model"))
    )


def _is_complete(folder: Path) -> bool:
    if not (folder / "config.json").is_file() or not any(folder.glob("*token*")):
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        shards = set(json.loads(read_regular(index, MAX_INDEX_NBYTES))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return False
    return all((folder / str(shard)).is_file() for shard in shards)


def _cached(name: HubName, is_complete: Callable[[Path], bool]) -> Path | None:
    hub = _import_hub()
    try:
        folder = Path(hub.snapshot_download(name.repository, revision=name.revision, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if is_complete(folder) else None


def _download(name: HubName, wanted: Callable[[str], bool], announce: Callable[[str], None] | None) -> Path:
    hub = _import_hub()
    bars_were_off, verbosity = hub.utils.are_progress_bars_disabled(), hub.utils.logging.get_verbosity()
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    try:
        api = hub.HfApi(endpoint=hub.constants.ENDPOINT)
        info = api.model_info(name.repository, revision=name.revision, timeout=_TIMEOUT_SECONDS)
        files = sorted(sibling.rfilename for sibling in info.siblings or () if wanted(sibling.rfilename))
        if "config.json" not in files:
            raise ModelError(f"hub model {name} has no config.json; expected a transformers model")
        if announce is not None and not any(_WEIGHT_FILES.fullmatch(file) for file in files):
            raise ModelError(f"hub model {name} has no model.safetensors; weights in other forms are not read")
        # The config is asked for under the name that the user gave, which notes in the hub cache what commit that name
        # stands for; everything else is taken from that commit.
        folder = Path(_download_file(hub, name, "config.json", name.revision)).parent
        for file in files:
            if announce is not None and file.endswith(".safetensors"):
                announce(f"downloading {file} of {name}")
            if file != "config.json":
                _download_file(hub, name, file, folder.name)
    except ModelError:
        raise
    except Exception as error:  # huggingface_hub, its HTTP client and the operating system have no common base
        raise ModelError(_explain(name, error)) from error
    finally:
        if not bars_were_off:
            hub.utils.enable_progress_bars()
        hub.utils.logging.set_verbosity(verbosity)
    return folder


def _download_file(hub: Any, name: HubName, file: str, revision: str | None) -> str:
    return hub.hf_hub_download(
        name.repository,
        file,
        revision=revision,
        etag_timeout=_TIMEOUT_SECONDS,
        endpoint=hub.constants.ENDPOINT,
    )


def _explain(name: HubName, error: Exception) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        found = "is gated: accept its terms on the hub and log in (hf auth login)"
    elif "RevisionNotFoundError" in kinds:
        found = f"has no revision {name.revision!r}"
    elif "RepositoryNotFoundError" in kinds:
        found = "was not found on the hub (or is private)"
    elif "OfflineModeIsEnabled" in kinds or "LocalEntryNotFoundError" in kinds:
        found = "is not in the local hub cache, and the hub cannot be asked (offline)"
    else:
        first_line = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        found = f"could not be fetched ({type(error).__name__}: {first_line})"
    return (
        f"model {name.repository!r} is no path here, and as a hub id it {found}; "
        "name a local transformers folder or .gguf file, or fetch it where there is a network"
    )


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(
            "a hub id needs the package huggingface_hub; install it with: pip install 'kvassay[torch]'"
        ) from error
    return huggingface_hub
