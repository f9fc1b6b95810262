"""Who may talk to the lab: a reader of this machine who has the address that the command printed.

Any web page that a browser has open can send requests to 127.0.0.1, and a foreign name can be made to resolve to it
(DNS rebinding). So the `Host` must be ours, the first part of the path must be the token, what changes or computes must
come from our own page (`Origin`) as JSON, and a body has an end. What is answered may load, run and send nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

MAX_BODY_NBYTES = 64 << 10

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Of a pack's own report, which a stranger may have written: it may be looked at, and that is all."""

HEADERS: dict[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """ASGI middleware that refuses strangers and takes the token out of the path."""

    def __init__(self, app: App, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        if port == 80:
            self._hosts |= {b"127.0.0.1", b"localhost"}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websocket is offered, and there is no lifespan to take part in
        fault = self._refusal(scope)
        if fault is not None:
            await _refuse(send, *fault)
            return
        # Routes are written as if there were no token; the token's part is the mount point.
        prefix, _, rest = str(scope["path"]).removeprefix("/").partition("/")
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
        assert prefix.encode() == self._token, "checked above"
        try:
            await self._app(inner, _bounded(receive), _with_headers(send))
        except _BodyTooLargeError:
            await _refuse(send, 413, f"the body has more than {MAX_BODY_NBYTES} bytes")

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 421, "this server answers to 127.0.0.1 and localhost alone"
        given, slash, _ = str(scope["path"]).removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token) or not slash:
            return 404, "open the whole address that kvassay lab printed; it holds a token"
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return 405, f"{scope['method'][:10]} is not answered; expected GET or POST"
        if _values(headers, b"origin") not in [[origin] for origin in self._origins]:
            return 403, "a POST comes from the lab's own page"
        kinds = _values(headers, b"content-type")
        if len(kinds) != 1 or kinds[0].partition(b";")[0].strip().lower() != b"application/json":
            return 415, "a POST carries application/json"
        lengths = _values(headers, b"content-length")
        if len(lengths) != 1 or not lengths[0].isdigit():
            return 411, "a POST says how long it is"
        if int(lengths[0][:20]) > MAX_BODY_NBYTES:
            return 413, f"the body has more than {MAX_BODY_NBYTES} bytes"
        return None


class _BodyTooLargeError(Exception):
    pass


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _bounded(receive: Receive) -> Receive:
    """Counts what really arrives; the declared length is only what the sender says."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_NBYTES:
            raise _BodyTooLargeError
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def headed(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in present)]
        await send(message)

    return headed


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = f"{sentence}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
