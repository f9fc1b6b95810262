"""Hub ids through the real huggingface_hub client: its cache, a local server in place of the hub, and no network."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as hub_constants
import pytest
import torch
import transformers as hf

from kvassay.core import hub as hub_module
from kvassay.core.model_source import geometry_of
from kvassay.engines.transformers.loading import load_model
from kvassay.errors import ModelError

from .model_folders import write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub(ThreadingHTTPServer):
    """Serves one repository `org/tiny` at one commit, in the shape of the hub's HTTP interface."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: LocalHub

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        self.server.requests.append(path)
        if path.startswith("/api/models/org/tiny"):
            files = [{"rfilename": file.name} for file in sorted(self.server.folder.iterdir())]
            self._send(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": files}).encode(), with_body)
        elif path.startswith((f"/org/tiny/resolve/{COMMIT}/", "/org/tiny/resolve/main/")):
            self._send((self.server.folder / path.rsplit("/", 1)[1]).read_bytes(), with_body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT does when huggingface_hub is imported."""
    monkeypatch.setattr(hub_constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a hub address at which nothing listens."""
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    point_to("http://127.0.0.1:9", monkeypatch)
    return tmp_path / "hub"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "served", shard="30KB")


@pytest.fixture
def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    server = LocalHub(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    point_to(server.address, monkeypatch)
    yield server
    server.shutdown()
    server.server_close()


def test_downloads_once_and_then_needs_no_network(
    hub: LocalHub, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    loaded = load_model("org/tiny", announce=said.append)
    assert loaded.revision == COMMIT
    assert any("downloading model-00001" in line for line in said)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(loaded.model.lm_head.weight, load_model(str(folder)).model.lm_head.weight)
    assert loaded.hashes == load_model(str(folder)).hashes

    hub.requests.clear()
    again = load_model("org/tiny", announce=said.append)
    assert hub.requests == []
    assert again.hashes == loaded.hashes


def test_geometry_fetches_the_config_only(hub: LocalHub) -> None:
    assert geometry_of("org/tiny").num_layers == 2
    assert {path.rsplit("/", 1)[1] for path in hub.requests if "/resolve/" in path} == {"config.json"}
    # The half-filled cache is not taken for a whole model afterwards.
    assert load_model("org/tiny").geometry.num_layers == 2


def test_unsupported_models_are_refused_before_their_weights_are_fetched(hub: LocalHub, folder: Path) -> None:
    hf.MambaConfig(num_hidden_layers=2).save_pretrained(folder)
    with pytest.raises(ModelError, match="state_size"):
        load_model("org/tiny")
    assert not any("safetensors" in path for path in hub.requests)


def test_a_repository_with_pickled_weights_only(hub: LocalHub, folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_model("org/tiny")
    assert not any(path.endswith(".bin") for path in hub.requests)


def test_an_unknown_repository_says_that_it_is_no_path_either(hub: LocalHub) -> None:
    with pytest.raises(ModelError, match="'models/typo' is no path here, and as a hub id it was not found"):
        load_model("models/typo")


def test_a_cached_snapshot_without_network(folder: Path, hub_cache: Path) -> None:
    """The layout that huggingface_hub leaves: refs/main names the commit, snapshots/COMMIT holds the files."""
    repository = hub_cache / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    assert load_model("org/tiny").revision == COMMIT
    assert load_model(f"org/tiny@{COMMIT}").revision == COMMIT
    shards = sorted((repository / "snapshots" / COMMIT).glob("model-*.safetensors"))
    shards[-1].unlink()
    with pytest.raises(ModelError, match="could not be fetched"):
        load_model("org/tiny")


def test_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="is no path here, and as a hub id it") as caught:
        load_model("org/tiny")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="offline"):
        load_model("org/tiny")


def test_a_server_that_never_answers_does_not_hang_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        point_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        start = time.monotonic()
        with pytest.raises(ModelError, match="could not be fetched"):
            load_model("org/tiny")
        assert time.monotonic() - start < 10
