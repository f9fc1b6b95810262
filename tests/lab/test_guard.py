"""Who is answered: 127.0.0.1, the token, our own page. Raw requests over a real socket."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest

from kvassay.lab.guard import MAX_BODY_NBYTES, PAGE_POLICY
from kvassay.lab.server import HOST, Lab, open_lab
from tests.lab.running import Answer, ask, running

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory):
    with running(tmp_path_factory.mktemp("shelf"), "no-model") as opened:
        yield opened


def own_origin(lab: Lab) -> dict[str, str]:
    return {**JSON, "origin": lab.address.rsplit("/", 2)[0]}


def judge(lab: Lab, headers: dict[str, str], body: bytes = b"{}") -> Answer:
    return ask(lab, "api/packs/1/judge", headers=headers, body=body)


def test_the_page_is_answered_and_may_load_nothing_foreign(lab: Lab) -> None:
    found = ask(lab, "")
    assert found.status == 200
    assert b'<script type="module" src="static/lab.js">' in found.body
    assert found.headers["content-security-policy"] == PAGE_POLICY
    assert "unsafe" not in PAGE_POLICY
    assert "http" not in PAGE_POLICY
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(name in found.headers for name in ("access-control-allow-origin", "server"))


def test_the_socket_is_bound_to_this_machine_alone(lab: Lab) -> None:
    assert lab.listener.getsockname()[0] == HOST == "127.0.0.1"


@pytest.mark.parametrize("path", ["/", "/api/packs", "/static/lab.js", "/wrong/", "/wrong/api/packs", "//"])
def test_nothing_is_answered_without_the_token(lab: Lab, path: str) -> None:
    found = ask(lab, path, whole_path=True)
    assert found.status == 404
    assert lab.address.rsplit("/", 2)[1].encode() not in found.body


def test_a_token_that_is_a_prefix_or_an_extension_is_none(lab: Lab) -> None:
    token = lab.address.rsplit("/", 2)[1]
    for wrong in (token[:-1], token + "A", token.swapcase(), ""):
        assert ask(lab, f"/{wrong}/", whole_path=True).status == 404


def test_tokens_are_long_and_differ(tmp_path: Path) -> None:
    opened = [open_lab(tmp_path, "no-model") for _ in range(2)]
    tokens = {each.address.rsplit("/", 2)[1] for each in opened}
    for each in opened:
        each.listener.close()
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}"]
)
def test_a_foreign_name_that_resolves_here_is_refused(lab: Lab, host: str) -> None:
    """DNS rebinding: the browser says which name it asked for."""
    port = lab.listener.getsockname()[1]
    assert ask(lab, "", headers={"host": host.format(port=port)}).status == 421


def test_localhost_is_a_name_of_this_machine(lab: Lab) -> None:
    assert ask(lab, "", headers={"host": f"LocalHost:{lab.listener.getsockname()[1]}"}).status == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}"]
)
def test_a_post_from_another_page_is_refused(lab: Lab, origin: str | None) -> None:
    headers = dict(JSON)
    if origin is not None:
        headers["origin"] = origin.format(port=lab.listener.getsockname()[1])
    assert judge(lab, headers).status == 403


def test_a_post_of_our_page_reaches_the_room(lab: Lab) -> None:
    found = judge(lab, own_origin(lab), b'{"bounds": {}}')
    assert found.status == 400
    assert json.loads(found.body) == {"error": "there is no pack number 1; open the list of packs again"}


def test_a_form_cannot_post(lab: Lab) -> None:
    """A plain form needs no preflight; JSON does."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert judge(lab, {**own_origin(lab), "content-type": kind}).status == 415


def test_a_body_has_an_end(lab: Lab) -> None:
    assert judge(lab, own_origin(lab), b" " * (MAX_BODY_NBYTES + 1)).status == 413


def test_a_body_that_says_no_length_is_refused(lab: Lab) -> None:
    connection = http.client.HTTPConnection(HOST, lab.listener.getsockname()[1], timeout=60)
    token = lab.address.rsplit("/", 2)[1]
    headers = {**own_origin(lab), "transfer-encoding": "chunked"}
    connection.request("POST", f"/{token}/api/capture", body=iter([b"{}"]), headers=headers, encode_chunked=True)
    assert connection.getresponse().status == 411
    connection.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(lab: Lab, method: str) -> None:
    assert ask(lab, "", method=method, headers=own_origin(lab)).status == 405


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "%2e%2e/guard.py", "lab.py", "nothing.js", ".js"])
def test_static_files_are_those_of_the_folder(lab: Lab, name: str) -> None:
    assert ask(lab, f"static/{name}").status == 404


@pytest.mark.parametrize("path", ["docs", "redoc", "openapi.json", "api/packs/x", "nothing"])
def test_no_route_is_there_that_the_page_does_not_use(lab: Lab, path: str) -> None:
    assert ask(lab, path).status in (400, 404)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    from kvassay.errors import UsageError

    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 cannot be used: .*leave --port out"):
            open_lab(tmp_path, "no-model", port)
