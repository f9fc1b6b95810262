"""Footers whose histograms do not fit: pyarrow would end the process, so they are refused before it reads them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvassay.errors import PackError
from kvassay.pack.parquet_pages import check_footer_size

Fields = list[tuple[int, int, bytes]]
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def number(value: int) -> bytes:
    return varint(value << 1)


def struct_of(*fields: tuple[int, int, bytes]) -> bytes:
    """Thrift's compact protocol: each field's step and type, then its value; a zero ends the struct."""
    found, before = b"", 0
    for field, kind, value in fields:
        found += bytes([field - before << 4 | kind]) + value
        before = field
    return found + b"\0"


def list_of(kind: int, values: list[bytes]) -> bytes:
    return bytes([len(values) << 4 | kind]) + b"".join(values)


def footer(optional: bool, repetition: int, definition: int) -> bytes:
    """Of one row group with one column; the counts are of its histograms' levels."""
    counts = [(2, LIST, list_of(I64, [number(1)] * repetition)), (3, LIST, list_of(I64, [number(1)] * definition))]
    root = struct_of((4, BINARY, b"\x06schema"), (5, I32, number(1)))
    leaf = struct_of((1, I32, number(5)), (3, I32, number(int(optional))), (4, BINARY, b"\x01x"))
    chunk = struct_of(
        (2, I64, number(4)), (3, STRUCT, struct_of((1, I32, number(5)), (16, STRUCT, struct_of(*counts))))
    )
    group = struct_of((1, LIST, list_of(STRUCT, [chunk])), (3, I64, number(1)))
    return struct_of((1, I32, number(2)), (2, LIST, list_of(STRUCT, [root, leaf])), (4, LIST, list_of(STRUCT, [group])))


def file_with(thrift: bytes) -> io.BytesIO:
    return io.BytesIO(b"PAR1" + thrift + len(thrift).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(
    ("optional", "repetition", "definition"), [(False, 0, 0), (False, 1, 1), (True, 1, 2), (True, 0, 2)]
)
def test_histograms_of_a_flat_column_are_read(optional, repetition, definition) -> None:
    check_footer_size(file_with(footer(optional, repetition, definition)), "rows")


@pytest.mark.parametrize(
    ("optional", "repetition", "definition", "words"),
    [
        (False, 2, 0, "a histogram of 2 levels; expected 1"),
        (True, 1, 1, "a histogram of 1 levels; expected 2"),
        (False, 1, 2, "a histogram of 2 levels; expected 1"),
        (True, 4, 0, "a damaged footer"),
    ],
)
def test_histograms_that_do_not_fit_are_refused(optional, repetition, definition, words) -> None:
    with pytest.raises(PackError, match=words):
        check_footer_size(file_with(footer(optional, repetition, definition)), "rows")


def test_what_pyarrow_writes_is_read_and_a_histogram_too_long_would_end_a_process(tmp_path: Path) -> None:
    """The reason for all this; where pyarrow learns to refuse such a footer, this test says so."""
    table = pa.table(
        {"a": pa.array([1, None, 3]), "b": pa.array(["x", "y", "z"])},
        pa.schema([("a", pa.int32()), pa.field("b", pa.string(), False)]),
    )
    pq.write_table(table, tmp_path / "whole.parquet")
    with (tmp_path / "whole.parquet").open("rb") as file:
        check_footer_size(file, "rows")
    (tmp_path / "odd.parquet").write_bytes(file_with(footer(False, 3, 0)).getvalue())
    read = "import sys, pyarrow.parquet as pq; pq.ParquetFile(sys.argv[1]).metadata.row_group(0).column(0)"
    ended = subprocess.run([sys.executable, "-c", read, tmp_path / "odd.parquet"], capture_output=True, timeout=60)
    assert ended.returncode != 0
