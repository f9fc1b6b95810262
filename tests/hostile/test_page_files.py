"""Files of packed keys and values, of saved caches and of shared prefixes, with contents that mean harm.

Files whose hashes were made to fit a forged header are in tests/cache/test_saved_cache_refused.py and
tests/formats/test_packed_kv.py; here is what any file may be made into.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from benchmarks.fuzz.bounded import Outcome

import kvassay
from kvassay.cache import PrefixStore, QuantizedCache
from tests.cache.cache_states import prompt
from tests.cache.prefix_cases import TOKENS, empty_cache, filled_cache, identity_of
from tests.cache.test_operations import small_config
from tests.hostile.odd_files import DATA, LINKS, PLACES
from tests.thorough import pairs, some

Bounded = Callable[[Callable[[], Any]], Outcome]


class Kind(NamedTuple):
    error: str
    read: Callable[[Path], Any]


KINDS = {
    "packed": Kind("PackedKVError", lambda path: kvassay.load_packed(path).nbytes),
    "saved": Kind("SavedCacheError", lambda path: QuantizedCache.load(path, small_config()).get_seq_length()),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("pages")
    prompt("kivi-4,recent=8").save(folder / "saved")
    rng = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 1, 2, 70, 64, generator=rng)
    kvassay.format("kivi-4,recent=8").encode(k, v).save(folder / "packed")
    return {name: (folder / name).read_bytes() for name in KINDS}


@pytest.fixture(scope="module", autouse=True)
def _warm(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a reader imports when it is first used is imported here once, and not in every child."""
    folder = tmp_path_factory.mktemp("valid")
    for name, kind in KINDS.items():
        (folder / name).write_bytes(files[name])
        kind.read(folder / name)


def _header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """The container's own table edited; data and our header stay."""

    def apply(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8 : 8 + length])
        change(table)
        text = json.dumps(table).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return apply


def _first(field: str, value: Any) -> Callable[[bytes], bytes]:
    def change(table: dict[str, Any]) -> None:
        table[next(name for name in table if name != "__metadata__")][field] = value

    return _header(change)


def _text(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """A header's text edited, its length made to fit."""

    def apply(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        text = raw[8 : 8 + length].replace(old, new, 1)
        assert text != raw[8 : 8 + length]
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return apply


def _raw(header: bytes, length: int | None = None) -> Callable[[bytes], bytes]:
    return lambda raw: (len(header) if length is None else length).to_bytes(8, "little") + header


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "cut in the prefix": lambda raw: raw[:5],
    "cut in the header": lambda raw: raw[:100],
    "cut in the data": lambda raw: raw[:-1],
    "bytes behind": lambda raw: raw + b"\0",
    "twice": lambda raw: raw + raw,
    "a header of exabytes": _raw(b"{}", 1 << 62),
    "a header below zero": _raw(b"{}", (1 << 64) - 1),
    "an empty header": _raw(b""),
    "a header nested without end": _raw(b"[" * 500_000),
    "a header of millions of lists": _raw(b"[" + b"[]," * 300_000 + b"[]]"),
    "a header of NaN": _text(b'"data_offsets"', b'"x":NaN,"data_offsets"'),
    "a key twice": _text(b'{"__metadata__"', b'{"__metadata__":{},"__metadata__"'),
    "an array twice": _text(b'"dtype"', b'"dtype":"U8","dtype"'),
    "no metadata": _header(lambda table: table.pop("__metadata__")),
    "metadata that is a list": _header(lambda table: table.update(__metadata__=[])),
    "metadata of another kind of file": _header(lambda table: table.update(__metadata__={"format": "pt"})),
    "our header as a number": _header(
        lambda table: table["__metadata__"].update(dict.fromkeys(table["__metadata__"], 1))
    ),
    "our header nested": _header(
        lambda table: table["__metadata__"].update(dict.fromkeys(table["__metadata__"], "[" * 100_000))
    ),
    "our header of NaN": _header(
        lambda table: table["__metadata__"].update(dict.fromkeys(table["__metadata__"], '{"schema":NaN}'))
    ),
    "a name that climbs": _header(lambda table: table.update({"../../outside/x": table["__metadata__"]})),
    "a shape of exabytes": _first("shape", [1 << 40, 1 << 40]),
    "a shape below zero": _first("shape", [-1]),
    "a shape of fractions": _first("shape", [1.5]),
    "a shape of a thousand sizes": _first("shape", [1] * 1000),
    "a dtype of the future": _first("dtype", "F1"),
    "a dtype that runs code": _first("dtype", "__import__('os')"),
    "offsets that cross": _first("data_offsets", [8, 0]),
    "offsets beyond the file": _first("data_offsets", [0, 1 << 50]),
    "offsets of truths": _first("data_offsets", [False, True]),
}


@pytest.mark.parametrize(("edit", "kind"), pairs(list(EDITS), list(KINDS)))
def test_hostile_files_are_refused_by_name(
    kind: str, edit: str, files: dict[str, bytes], inside: Path, bounded: Bounded
) -> None:
    path = inside / "file"
    path.write_bytes(EDITS[edit](files[kind]))
    outcome = bounded(lambda: KINDS[kind].read(path))
    assert (outcome.status, outcome.error) == ("refused", KINDS[kind].error), outcome
    assert outcome.message.startswith(f"{path}: ")
    assert len(outcome.message) < 1500


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_that_they_were_made_of_are_read(
    kind: str, files: dict[str, bytes], inside: Path, bounded: Bounded
) -> None:
    (inside / "file").write_bytes(files[kind])
    assert bounded(lambda: KINDS[kind].read(inside / "file")).value


@pytest.mark.parametrize(("data", "kind"), pairs(some(list(DATA), 2), list(KINDS)))
def test_other_bytes_are_refused(kind: str, data: str, inside: Path, bounded: Bounded) -> None:
    (inside / "file").write_bytes(DATA[data]())
    assert bounded(lambda: KINDS[kind].read(inside / "file")).error == KINDS[kind].error


@pytest.mark.parametrize(("place", "kind"), pairs(list(PLACES), list(KINDS)))
def test_what_is_no_file_is_refused(kind: str, place: str, inside: Path, outside: Path, bounded: Bounded) -> None:
    PLACES[place](inside / "file", outside)
    assert bounded(lambda: KINDS[kind].read(inside / "file")).error == KINDS[kind].error


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("prefixes")
    cache = filled_cache()
    PrefixStore(folder=folder).put(cache, range(TOKENS), identity_of(cache))
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(".safetensors")}


def _lookup(folder: Path, identity: Any) -> int:
    return PrefixStore(folder=folder).lookup(range(TOKENS), identity, empty_cache()).tokens


HOSTILE_BLOCKS: dict[str, Callable[[Path, Path, bytes], Any]] = {
    **{name: (lambda path, outside, raw, edit=edit: path.write_bytes(edit(raw))) for name, edit in EDITS.items()},
    **{name: (lambda path, outside, raw, make=make: path.write_bytes(make())) for name, make in DATA.items()},
    **{
        name: (lambda path, outside, raw, make=make: (path.unlink(), make(path, outside)))
        for name, make in {**PLACES, **LINKS}.items()
    },
}


@pytest.mark.parametrize("case", some(list(HOSTILE_BLOCKS), 4))
def test_a_hostile_block_is_never_used(
    case: str, stored: dict[str, bytes], inside: Path, outside: Path, bounded: Bounded
) -> None:
    """A store goes on without the block: what it holds is what a lookup may use, so no token comes of it."""
    for name, raw in stored.items():
        (inside / name).write_bytes(raw)
        HOSTILE_BLOCKS[case](inside / name, outside, raw)
    identity = identity_of(filled_cache())
    outcome = bounded(lambda: _lookup(inside, identity))
    assert outcome.value in (0, None), outcome
    if outcome.value is None:
        assert outcome.error == "PrefixStoreError"


def test_the_blocks_that_they_were_made_of_are_used(stored: dict[str, bytes], inside: Path, bounded: Bounded) -> None:
    for name, raw in stored.items():
        (inside / name).write_bytes(raw)
    identity = identity_of(filled_cache())
    assert bounded(lambda: _lookup(inside, identity)).value > 0
