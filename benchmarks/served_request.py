"""One request to a served model, from the socket: time to the first token, time a token, and the bytes of its cache.

    python -m benchmarks.served_request MODEL --pack PACK [--format kivi-4]... [--prompt-tokens 1024] [--tokens 64]
                                        [--requests 5] [--at-once 1] [--ungated] [--json FILE]

A real HTTP server (uvicorn) on 127.0.0.1 holds MODEL; a request sends token ids and is answered by one line of JSON a
token, as tokens come. Each request has a cache of its own: `none` is transformers' DynamicCache, others are formats of
QuantizedCache. Formats take turns, request by request. Times are the client's, so they hold parsing, sockets, prefill,
quantizing and decoding. Requests that are sent at once wait for each other at the model: this server has no batching.

A speed without quality is no result: a row has figures only if PACK says that the format met its contract
(`none` needs no proof); `--ungated` prints them without, marked as no claim.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from transformers import DynamicCache

from benchmarks.stages import Gate, gate
from kvassay.cache import QuantizedCache
from kvassay.cli.output import print_table
from kvassay.engines.transformers.loading import load_model
from kvassay.pack.reader import read_whole_pack

PLAIN = "none"


class Served(NamedTuple):
    """What one request met."""

    token_ids: tuple[int, ...]
    first_seconds: float
    """From the request to its first token."""
    seconds: float
    """To the last."""
    stored_nbytes: int


def served_app(model: Any) -> FastAPI:
    """`POST /generate` with `format`, `prompt_ids` and `tokens`: greedy, exactly so many tokens, one line each."""
    app = FastAPI()
    turn = threading.Lock()

    @app.post("/generate")
    async def generate(request: Request) -> StreamingResponse:
        asked = await request.json()
        lines = _lines(model, asked["format"], asked["prompt_ids"], asked["tokens"], turn)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return app


def _lines(model: Any, name: str, prompt_ids: list[int], tokens: int, turn: threading.Lock) -> Iterator[str]:
    """Steps of one answer may run in several of the server's threads, one after another."""
    with turn:
        cache = DynamicCache(config=model.config) if name == PLAIN else QuantizedCache(model.config, name)
        ids = torch.tensor([prompt_ids])
        for _ in range(tokens):
            ids = _next_ids(model, ids, cache)
            yield json.dumps({"token_id": int(ids)}) + "\n"
        yield json.dumps({"stored_nbytes": _stored_nbytes(cache)}) + "\n"


@torch.inference_mode()  # which is of a thread, so it may not stand around a `yield`
def _next_ids(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    return model(ids, cache=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)


def _stored_nbytes(cache: Any) -> int:
    if isinstance(cache, QuantizedCache):
        return cache.ledger().persistent_nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@contextmanager
def serving(model: Any) -> Iterator[int]:
    """The port of a server that ends with the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(served_app(model), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            if time.monotonic() > deadline or not thread.is_alive():
                raise RuntimeError("the server did not start within 30 s")
            time.sleep(0.01)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def ask(port: int, name: str, prompt_ids: list[int], tokens: int) -> Served:
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        began = time.perf_counter()
        body = json.dumps({"format": name, "prompt_ids": prompt_ids, "tokens": tokens})
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {answer.read(500).decode(errors='replace')}")
        found: list[int] = []
        first = last = 0.0
        for line in answer:
            told = json.loads(line)
            if "stored_nbytes" in told:
                return Served(tuple(found), first - began, last - began, told["stored_nbytes"])
            last = time.perf_counter()
            first = first or last
            found.append(told["token_id"])
        raise RuntimeError(f"the answer broke off after {len(found)} of {tokens} tokens")
    finally:
        connection.close()


class Row(NamedTuple):
    format: str
    gate: str
    stored_nbytes: int | None
    first_seconds: tuple[float, float, float] | None
    """Median, least and most; None in a void row."""
    token_seconds: tuple[float, float, float] | None
    """Between tokens after the first."""


def measure(
    model: Any,
    names: list[str],
    gates: dict[str, Gate],
    prompt_ids: list[int],
    tokens: int,
    requests: int,
    at_once: int,
) -> list[Row]:
    taken: dict[str, list[Served]] = {name: [] for name in names if gates[name].passed}
    with serving(model) as port, ThreadPoolExecutor(at_once) as pool:
        for turn in range(requests + 1):
            for name, served in taken.items():
                answers = pool.map(lambda _, name=name: ask(port, name, prompt_ids, tokens), range(at_once))
                if turn:  # the first request also sets up
                    served.extend(answers)
                else:
                    list(answers)
    return [_row(name, gates[name], taken.get(name, []), tokens) for name in names]


def _row(name: str, found: Gate, served: list[Served], tokens: int) -> Row:
    if not served:
        return Row(name, found.reason, None, None, None)
    return Row(
        name,
        found.reason,
        served[0].stored_nbytes,
        _spread([each.first_seconds for each in served]),
        _spread([(each.seconds - each.first_seconds) / max(1, tokens - 1) for each in served]),
    )


def _spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def gates_of(names: list[str], pack: Path | None, ungated: bool) -> dict[str, Gate]:
    content = read_whole_pack(pack) if pack else None
    found = {name: Gate(True, "the reference") if name == PLAIN else gate(content, name) for name in names}
    if ungated:
        return {name: each if each.passed else Gate(True, "none: no claim") for name, each in found.items()}
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--format", action="append", dest="formats")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--ungated", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    names = [PLAIN, *(given.formats or ["int8-token-head", "kivi-4,recent=32"])]
    model = load_model(given.model, announce=print).model
    model.set_attn_implementation("kvassay")
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, model.config.vocab_size, (given.prompt_tokens,), generator=generator).tolist()
    gates = gates_of(names, given.pack, given.ungated)
    rows = measure(model, names, gates, prompt, given.tokens, given.requests, given.at_once)
    print(
        f"{given.requests} rounds of {given.at_once} at once, {given.prompt_tokens} + {given.tokens} tokens, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}; median (least to most)"
    )
    print_table(["format", "first token ms", "a token ms", "stored KiB", "gate"], [_cells(row) for row in rows])
    if given.json:
        given.json.write_text(json.dumps([row._asdict() for row in rows], indent=2) + "\n")
    return 0


def _cells(row: Row) -> list[object]:
    shown = [
        "-" if each is None else f"{1000 * each[0]:.1f} ({1000 * each[1]:.1f} to {1000 * each[2]:.1f})"
        for each in (row.first_seconds, row.token_seconds)
    ]
    stored = "-" if row.stored_nbytes is None else f"{row.stored_nbytes / 1024:,.0f}"
    return [row.format, *shown, stored, row.gate]


if __name__ == "__main__":
    sys.exit(main())
