"""The lab's server: routes of the four rooms, behind the guard, on 127.0.0.1."""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Callable, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

import kvassay
from kvassay.errors import KvassayError, MissingExtraError, UsageError
from kvassay.lab.bench_settings import BenchSettings
from kvassay.lab.capture import CaptureDesk
from kvassay.lab.guard import REPORT_POLICY, Guard
from kvassay.lab.pack_margins import OtherBounds, judged_again
from kvassay.lab.pack_rows import RowQuery, rows_page
from kvassay.lab.pack_shelf import PackShelf
from kvassay.lab.pack_view import compared, pack_view
from kvassay.lab.reference_tests import reference_tests, source_of
from kvassay.pack.layout import is_pack_file
from kvassay.report.style_sheet import style_sheet

Settings = TypeVar("Settings", bound=BaseModel)

HOST = "127.0.0.1"
TOKEN_NBYTES = 24
_FILE_KINDS = {
    "html": "text/html; charset=utf-8",
    "json": "text/plain; charset=utf-8",
    "toml": "text/plain; charset=utf-8",
    "parquet": "application/octet-stream",
}
_KINDS = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}


class Lab(NamedTuple):
    """A bound socket and the application that answers on it."""

    app: Guard
    listener: socket.socket
    address: str
    """With the token; whoever has it may use the lab."""

    def config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self.app,  # pyright: ignore[reportArgumentType]
            access_log=False,  # it would write the token
            log_level="critical",  # a fault is a sentence on the page; an interrupt in mid-answer is none
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            limit_concurrency=64,
            timeout_graceful_shutdown=1,
        )

    def serve(self) -> None:
        """Answer until interrupted."""
        uvicorn.Server(self.config()).run(sockets=[self.listener])


def open_lab(packs: Path, model: str, port: int = 0, desk: CaptureDesk | None = None) -> Lab:
    """Bind a port of 127.0.0.1 (0: a free one) and make an address. Raises UsageError where the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)  # who has the address may come at once, and waits until the server takes it up
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {port} of {HOST} cannot be used: {error.strerror}; leave --port out for a free one"
        ) from error
    token = secrets.token_urlsafe(TOKEN_NBYTES)
    bound: int = listener.getsockname()[1]
    app = Guard(make_app(PackShelf(packs), desk or CaptureDesk(model)), token, bound)  # pyright: ignore[reportArgumentType]
    return Lab(app, listener, f"http://{HOST}:{bound}/{token}/")


def make_app(shelf: PackShelf, desk: CaptureDesk) -> FastAPI:
    """All routes, without the guard."""
    app = FastAPI(title="kvassay lab", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(KvassayError, _refused)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(Exception, _fault)
    _add_pages(app)
    _add_bench(app, desk)
    _add_experiment(app)
    _add_packs(app, shelf)
    return app


def _add_pages(app: FastAPI) -> None:
    @app.get("/")
    def page() -> Response:
        return _static("index.html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        return _static(name)

    @app.get("/report.css")
    def report_css() -> Response:
        return Response(style_sheet(), media_type="text/css")

    @app.get("/api/network")
    def network() -> Response:
        return _json({"version": kvassay.__version__, "tests": reference_tests()})

    @app.get("/reference-tests/{number}")
    def reference_test(number: int) -> Response:
        text = source_of(number)
        if text is None:
            raise UsageError("the source of this test is in a checkout of kvassay, and this is an installed package")
        return Response(text, media_type="text/plain; charset=utf-8")


def _add_bench(app: FastAPI, desk: CaptureDesk) -> None:
    @app.get("/api/bench")
    def bench(request: Request) -> Response:
        settings = _query(BenchSettings, request)
        _require_torch()
        from kvassay.lab.bench import run_bench

        if settings.source == "captured" and desk.captured is None:
            raise UsageError("no keys and values are captured yet; capture them first")
        return _json(run_bench(settings, desk.captured))

    @app.get("/api/capture")
    def capture_state() -> Response:
        return _json(desk.state())

    @app.post("/api/capture")
    def capture_start() -> Response:
        _require_torch()
        desk.start()
        return _json(desk.state())


def _add_experiment(app: FastAPI) -> None:
    rooms: list[Any] = []

    def room() -> Any:
        _require_torch()
        from kvassay.lab.experiment_room import ExperimentRoom

        if not rooms:
            rooms.append(ExperimentRoom())
        return rooms[0]

    @app.get("/api/experiment")
    def experiment() -> Response:
        return _json(room().tables())

    @app.post("/api/experiment/audit")
    def audit() -> Response:
        return _json(room().audit())


def _add_packs(app: FastAPI, shelf: PackShelf) -> None:
    @app.get("/api/packs")
    def packs() -> Response:
        return _json(shelf.list())

    @app.get("/api/packs/{number}")
    def pack(number: int) -> Response:
        return _json(_of_stranger(lambda: pack_view(shelf, number)))

    @app.get("/api/packs/{number}/rows")
    def rows(number: int, request: Request) -> Response:
        query = _query(RowQuery, request)
        return _json(_of_stranger(lambda: rows_page(shelf.content(number).tables, query)))

    @app.post("/api/packs/{number}/judge")
    def judge(number: int, other: OtherBounds) -> Response:
        return _json(_of_stranger(lambda: judged_again(shelf.content(number), other)))

    @app.get("/api/compare")
    def compare(first: int, second: int) -> Response:
        return _json(_of_stranger(lambda: compared(shelf, first, second)))

    @app.get("/packs/{number}/{name:path}")
    def pack_file(number: int, name: str) -> Response:
        """The report, and the files that its links name."""
        kind = _FILE_KINDS.get(name.rpartition(".")[2])
        if kind is None or not is_pack_file(name):
            return _not_found()
        return Response(shelf.file(number, name), media_type=kind, headers={"content-security-policy": REPORT_POLICY})


def _of_stranger(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A pack may hold what no run writes: whatever that causes is a sentence on the page."""
    try:
        return work()
    except KvassayError:
        raise
    except Exception as error:
        raise UsageError(
            f"this pack cannot be shown: {type(error).__name__}: {str(error)[:200]}; see what kvassay verify says of it"
        ) from error


def _query(settings: type[Settings], request: Request) -> Settings:
    """The query as settings; text becomes numbers, and nothing else is forgiven."""
    given = request.query_params
    if twice := [name for name in given if len(given.getlist(name)) > 1]:
        raise UsageError(f"{twice[0]} is given twice")
    try:
        return settings.model_validate_strings(dict(given))
    except ValidationError as error:
        raise UsageError(_first_fault(error.errors(include_url=False))) from error


def _first_fault(errors: Any) -> str:
    first: Mapping[str, Any] = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "body", "path"))
    return f"{where or 'the request'}: {first['msg']}, found {str(first.get('input'))[:80]!r}"


def _static(name: str) -> Response:
    stem, _, kind = name.rpartition(".")
    source = files("kvassay.lab") / "static" / name
    if not stem.replace("_", "").isalnum() or kind not in _KINDS or not source.is_file():
        return _not_found()
    return Response(source.read_bytes(), media_type=f"{_KINDS[kind]}; charset=utf-8")


def _not_found() -> Response:
    return Response("not found\n", status_code=404, media_type="text/plain")


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise MissingExtraError("this room needs torch, not installed; install the extra: pip install 'kvassay[torch]'")


def _json(value: Any) -> Response:
    return JSONResponse(_plain(value))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: such a figure is null, which the page shows as absent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return value


def _refused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=400)


def _unreadable(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"error": _first_fault(error.errors())}, status_code=400)


def _fault(_request: Request, error: Exception) -> Response:
    sentence = f"{type(error).__name__}: {str(error)[:300]}; this is a fault of kvassay"
    return JSONResponse({"error": sentence}, status_code=500)
