"""GGUF headers that promise more than they hold, or a cache that no machine has."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz.bounded import Outcome

from kvassay.core.gguf_header import geometry_from_gguf
from tests.hostile.odd_files import DATA, PLACES
from tests.thorough import some

Bounded = Callable[[Callable[[], Any]], Outcome]
U8, I32, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 4, 6, 7, 8, 9, 10

GOOD: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (U32, 2),
    "llama.embedding_length": (U32, 128),
    "llama.context_length": (U32, 512),
    "llama.attention.head_count": (U32, 4),
    "llama.attention.head_count_kv": (U32, 2),
}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if kind == STRING:
        return text(content)
    return struct.pack({U8: "<B", I32: "<i", U32: "<I", F32: "<f", BOOL: "<B", U64: "<Q"}[kind], content)


def header(entries: list[tuple[Any, int, Any]], count: int | None = None, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(entries) if count is None else count)
    return head + b"".join(text(key) + struct.pack("<I", kind) + value(kind, content) for key, kind, content in entries)


def with_key(key: Any, kind: int, content: Any) -> bytes:
    entries = [(name, *entry) for name, entry in GOOD.items() if name != key]
    return header([*entries, (key, kind, content)])


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + data


CASES: dict[str, tuple[bytes, str]] = {
    "another magic": (b"GGML" + header([])[4:], "its first bytes are not 'GGUF'"),
    "version 1": (header([], version=1), "GGUF version 1; expected 2 or 3"),
    "the other byte order": (header([], version=3 << 24), "a big-endian file"),
    "keys without end": (header([], count=1 << 63), "claims 9223372036854775808 metadata keys"),
    "more keys than there are": (header([], count=1000), "the file is cut or damaged"),
    "a key of exabytes": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "a string of 4611686018427387904 bytes"),
    "a text of exabytes": (with_key("x", STRING, struct.pack("<Q", 1 << 62)), "a string of 4611686018427387904 bytes"),
    "an array of exabytes": (
        with_key("x", ARRAY, array(U64, 1 << 60)),
        "the header asks for 9223372036854775808 bytes",
    ),
    "an array that wraps": (with_key("x", ARRAY, array(U64, (1 << 61) + 1)), "the file is cut or damaged"),
    "texts without end": (with_key("x", ARRAY, array(STRING, 1 << 40)), "the file is cut or damaged"),
    "arrays of arrays": (with_key("x", ARRAY, array(ARRAY, 1, array(ARRAY, 1))), "a metadata array of type 9"),
    "a type of the future": (with_key("x", 99, b""), "unknown metadata type 99"),
    "a key twice": (header([("x", U32, 1), ("x", U32, 2)]), "metadata key 'x' stands twice"),
    "bytes that are no text": (with_key("x", STRING, text(b"\xff\xfe")), "a metadata string is not UTF-8"),
    "a name that turns around": (with_key("general.architecture", STRING, "ll\u202eama"), "no sound general.archi"),
    "a null byte in the name": (with_key("general.architecture", STRING, "ll\x00ama"), "no sound general.archi"),
    "a long name": (with_key("general.architecture", STRING, "l" * 200), "no sound general.architecture"),
    "a name that is a number": (with_key("general.architecture", U32, 3), "no sound general.architecture"),
    "four billion layers": (with_key("llama.block_count", U32, 0xFFFFFFFF), "layers"),
    "no layers": (with_key("llama.block_count", U32, 0), "layers"),
    "layers below zero": (with_key("llama.block_count", I32, -5), "layers"),
    "layers that are no number": (with_key("llama.block_count", F32, float("nan")), "layers"),
    "heads that are infinite": (with_key("llama.attention.head_count_kv", F32, float("inf")), "head"),
    "no heads": (with_key("llama.attention.head_count", U32, 0), "head"),
    "a head size beyond any": (with_key("llama.attention.key_length", U64, (1 << 64) - 1), "head_dim"),
    "heads of other layers": (
        with_key("llama.attention.head_count_kv", ARRAY, array(U32, 3, bytes(12))),
        "names 3 layers",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_headers_are_refused_by_name(case: str, inside: Path, bounded: Bounded) -> None:
    data, message = CASES[case]
    path = inside / "model.gguf"
    path.write_bytes(data)
    outcome = bounded(lambda: geometry_from_gguf(path).query_heads)
    assert (outcome.status, outcome.error) == ("refused", "GeometryError"), outcome
    assert message in outcome.message
    assert outcome.message.isprintable()


def test_the_header_that_they_were_made_of_is_read(inside: Path, bounded: Bounded) -> None:
    path = inside / "model.gguf"
    path.write_bytes(header([(name, *entry) for name, entry in GOOD.items()]))
    assert bounded(lambda: geometry_from_gguf(path).query_heads).value == 4


@pytest.mark.parametrize("data", some(list(DATA), 3))
def test_other_bytes_are_refused(data: str, inside: Path, bounded: Bounded) -> None:
    path = inside / "model.gguf"
    path.write_bytes(DATA[data]())
    assert bounded(lambda: geometry_from_gguf(path).query_heads).error == "GeometryError"


@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_refused(place: str, inside: Path, outside: Path, bounded: Bounded) -> None:
    path = inside / "model.gguf"
    PLACES[place](path, outside)
    assert bounded(lambda: geometry_from_gguf(path).query_heads).error == "GeometryError"
