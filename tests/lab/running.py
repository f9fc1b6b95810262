"""A lab that really answers, on a free port, in a thread of its own."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from kvassay.lab.capture import CaptureDesk
from kvassay.lab.server import HOST, Lab, open_lab


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def running(packs: Path, model: str, desk: CaptureDesk | None = None) -> Iterator[Lab]:
    """The server of `kvassay lab` with its own settings; a thread may not take signals, so it is told to stop."""
    opened = open_lab(packs, model, desk=desk)
    server = uvicorn.Server(opened.config())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened.listener]}, daemon=True)
    thread.start()
    limit = time.monotonic() + 300
    while not server.started:
        assert thread.is_alive(), "the server ended before it answered"
        assert time.monotonic() < limit, "the server did not start"
        time.sleep(0.01)
    try:
        yield opened
    finally:
        server.should_exit = True
        thread.join(30)
        opened.listener.close()


def ask(
    lab: Lab,
    path: str,
    *,
    method: str | None = None,
    headers: Mapping[str, str] = {},
    body: bytes | None = None,
    whole_path: bool = False,
) -> Answer:
    """One request; `path` comes after the token. With a body it is a POST."""
    token = lab.address.rsplit("/", 2)[1]
    connection = http.client.HTTPConnection(HOST, lab.listener.getsockname()[1], timeout=300)
    target = path if whole_path else f"/{token}/{path}"
    connection.request(method or ("GET" if body is None else "POST"), target, body=body, headers=dict(headers))
    response = connection.getresponse()
    found = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    connection.close()
    return found


def post(lab: Lab, path: str, value: Any) -> Answer:
    """As the page posts."""
    headers = {"content-type": "application/json", "origin": lab.address.rsplit("/", 2)[0]}
    return ask(lab, path, headers=headers, body=json.dumps(value).encode())
