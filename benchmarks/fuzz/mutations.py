"""Mutations that know the structure of what they mutate, drawn by hypothesis, so that findings shrink.

Three kinds of file: JSON (its values are moved, retyped and repeated), text by lines (TOML), and bytes (lengths in
front, numbers within). A container has a length, a JSON header and data; its header is mutated as JSON, and so is the
JSON text within it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Mutation = Callable[[bytes], bytes]

ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 255, 256, 65536, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**30,
    -(10**30), 0.5, -0.0, 1e-320, 1e308, "", "x", "\u202e", "\x00", "a" * 3000, "../../x", "NaN", "0", "kivi-4", "f32",
    [], {}, [[]], [None], {"": {}}, {"x": 1}, ["a"] * 50,
]  # fmt: skip
ODD_TEXTS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"9" * 5000,
    b"[" * 2000,
    b'{"a":' * 2000,
    b'"\\ud800"',
    b"\xff",
]
ODD_NUMBERS = [0, 1, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]


Edit = Callable[[bytes, int, int, int], bytes]
"""Data, a place, which kind of edit, and which of its values."""


@st.composite
def _edited(draw: st.DrawFn, edit: Edit, kinds: int, most: int) -> Mutation:
    """One to `most` edits, one after another."""
    edits = draw(
        st.lists(
            st.tuples(st.integers(0, 10**9), st.integers(0, kinds - 1), st.integers(0, 10**6)),
            min_size=1,
            max_size=most,
        )
    )

    def apply(data: bytes) -> bytes:
        for place, what, which in edits:
            data = edit(data, place, what, which)
        return data

    return apply


def json_mutations() -> st.SearchStrategy[Mutation]:
    """One to four edits of the values of a JSON text."""
    return _edited(_edit_json, kinds=8, most=4)


def byte_mutations() -> st.SearchStrategy[Mutation]:
    """One to six edits of bytes: flips, cuts, repeats, and numbers of every width over what is there."""
    return _edited(_edit_bytes, kinds=7, most=6)


def _edit_json(data: bytes, place: int, what: int, which: int) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    spots = list(_spots(value))
    if not spots:
        return json.dumps(ODD_VALUES[which % len(ODD_VALUES)]).encode()
    holder, key = spots[place % len(spots)]
    if what <= 2:
        holder[key] = ODD_VALUES[which % len(ODD_VALUES)]
    elif what == 3:
        del holder[key]
    elif what == 4:
        other_holder, other_key = spots[which % len(spots)]
        holder[key] = json.loads(json.dumps(other_holder[other_key])) if key != other_key else holder[key]
    elif what == 5 and isinstance(holder, dict):
        holder[f"{key}\u200b" if which % 2 else str(ODD_VALUES[which % len(ODD_VALUES)])[:50]] = holder[key]
    elif what == 6 and isinstance(holder, list):
        holder.insert(which % (len(holder) + 1), holder[key])
    else:
        marker = "kvassay-fuzz-marker"
        holder[key] = marker
        return json.dumps(value).encode().replace(f'"{marker}"'.encode(), ODD_TEXTS[which % len(ODD_TEXTS)], 1)
    return json.dumps(value).encode()


def _spots(value: Any) -> Any:
    """Every place of a value: its holder and key, deepest last."""
    pending = [value]
    while pending:
        holder = pending.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                pending.append(holder[key])


def _edit_bytes(data: bytes, place: int, what: int, which: int) -> bytes:
    if not data:
        return bytes([which % 256])
    # Beginnings hold lengths and counts, so half of the edits fall into the first 256 bytes.
    at = place % min(len(data), 256) if place % 2 else place % len(data)
    if what == 0:
        return data[:at] + bytes([data[at] ^ (1 << which % 8)]) + data[at + 1 :]
    if what == 1:
        return data[:at]
    if what == 2:
        return data[:at] + data[at + 1 + which % 64 :]
    if what == 3:
        return data[:at] + data[at : at + 1 + which % 64] * 2 + data[at + 1 + which % 64 :]
    if what == 4:
        return data[:at] + bytes([which % 256]) * (1 + which % 9) + data[at:]
    width = (1, 2, 4, 8)[which % 4]
    number = ODD_NUMBERS[which % len(ODD_NUMBERS)] % (1 << 8 * width)
    return data[:at] + number.to_bytes(width, "little" if what == 5 else "big") + data[at + width :]


@st.composite
def line_mutations(draw: st.DrawFn) -> Mutation:
    """One to four edits of lines: gone, doubled, swapped, or another value behind the equals sign."""
    edits = draw(
        st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 10**6)), min_size=1, max_size=4)
    )

    def apply(data: bytes) -> bytes:
        lines = data.split(b"\n")
        for place, what, which in edits:
            _edit_lines(lines, place, what, which)
        return b"\n".join(lines)

    return apply


TOML_VALUES = [
    b"nan", b"inf", b"-1", b"0", b"1e400", b"0x" + b"f" * 5000, b"9" * 4000, b"true", b'""', b"[]", b"[[]]", b"{}",
    b"'x'", b'"\\u202e"', b"1979-05-27", b"[1, 'a']", b"{a = {b = 1}}", b'"kivi-4,recent=99999999999"', b"[" * 500,
    b'"\\u0000"', b"9007199254740993",
]  # fmt: skip


def _edit_lines(lines: list[bytes], place: int, what: int, which: int) -> None:
    at = place % len(lines)
    if what == 0 and len(lines) > 1:
        del lines[at]
    elif what == 1:
        lines.insert(which % (len(lines) + 1), lines[at])
    elif what == 2:
        other = which % len(lines)
        lines[at], lines[other] = lines[other], lines[at]
    elif what in (3, 4) and b"=" in lines[at]:
        lines[at] = lines[at].partition(b"=")[0] + b"= " + TOML_VALUES[which % len(TOML_VALUES)]
    else:
        lines[at] = _edit_bytes(lines[at], place, which % 5, which)


@st.composite
def container_mutations(draw: st.DrawFn) -> Mutation:
    """A safetensors file: its table, the JSON in its metadata, or its bytes."""
    inner, outer, raw = draw(st.tuples(json_mutations(), json_mutations(), byte_mutations()))
    which = draw(st.integers(0, 2))

    def apply(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header, rest = data[8 : 8 + length], data[8 + length :]
        if which == 2 or len(header) != length:
            return raw(data)
        if which == 1:
            table = json.loads(header)
            for key, text in table.get("__metadata__", {}).items():
                table["__metadata__"][key] = inner(text.encode()).decode("utf-8", "replace")
            header = json.dumps(table).encode()
        else:
            header = outer(header)
        return len(header).to_bytes(8, "little") + header + rest

    return apply
