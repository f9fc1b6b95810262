"""What the pages of a Parquet file really decompress to, read from their headers before any of them is decoded.

The footer also states sizes, and whoever made the file wrote it: a file of 100 KB can hold pages of gigabytes under a
footer that speaks of kilobytes, and a decoder allocates what the page says. Page headers are Thrift structs in the
compact protocol (Apache Parquet, parquet.thrift `PageHeader`; Thrift, thrift-compact-protocol.md). Of them the two
sizes are read here; what a page holds is pyarrow's business.
"""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from kvassay.errors import PackError

MAX_FOOTER_NBYTES = 2 << 20
"""Of ours, 300 row groups of some 15 columns take less than 1 MiB."""
MAX_PAGES = 200_000
"""Of one file; ours have a page or two in each of some 20 columns and 300 row groups."""
FREE_GROUP_NBYTES = 64 << 20
"""A row group may take so much when decompressed, however small it is in the file."""
MAX_RATIO = 64
"""A larger row group may decompress to so many times its size in the file; rows of runs stay below 20."""

_HEADER_NBYTES = 1 << 16
"""Enough for a header with the statistics of its page, which writers cut at 4 KiB."""
_MAX_DEPTH = 8
_MOST_LEVELS = 2
_I32, _LIST, _STRUCT = 5, 9, 12


class PageSizes(NamedTuple):
    header_nbytes: int
    decompressed_nbytes: int
    compressed_nbytes: int


def check_footer_size(file: BinaryIO, name: str) -> None:
    """Raise PackError for a footer that is longer than the file, or than any of ours, before it is parsed."""
    nbytes = file.seek(0, os.SEEK_END)
    if nbytes < 12:
        raise PackError(f"{name}: not a readable table: {nbytes} bytes are no Parquet file")
    file.seek(nbytes - 8)
    footer, magic = struct.unpack("<I4s", file.read(8))
    file.seek(0)
    if magic != b"PAR1":
        raise PackError(f"{name}: not a readable table: it does not end as a Parquet file")
    if footer > min(nbytes - 12, MAX_FOOTER_NBYTES):
        raise PackError(f"{name}: a footer of {footer} bytes in a file of {nbytes}; at most {MAX_FOOTER_NBYTES}")
    file.seek(nbytes - 8 - footer)
    _check_histograms(file.read(footer), name)
    file.seek(0)


def _check_histograms(footer: bytes, name: str) -> None:
    """Raise PackError for histograms of levels that do not fit the columns: pyarrow ends the process there.

    (Apache Parquet, parquet.thrift: `FileMetaData` 2 and 4, `SchemaElement` 3, `RowGroup` 1, `ColumnChunk` 3,
    `ColumnMetaData` 16, `SizeStatistics` 2 and 3.) Rows are flat, so nothing repeats and a column has one level or two.
    """
    reader = _Compact(footer)
    optional: list[bool] = []
    histograms: list[tuple[int, int, int]] = []

    def schema_element(_: int) -> None:
        repetition = 0
        for field, kind in reader.fields():
            if field == 3 and kind == _I32:
                repetition = reader.integer()
            else:
                reader.skip(kind)
        optional.append(repetition == 1)

    def size_statistics(column: int) -> None:
        for field, kind in reader.fields():
            if field in (2, 3) and kind == _LIST:
                element, count = reader.list_head()
                histograms.append((column, field, count))
                if count > _MOST_LEVELS:
                    raise ValueError(f"a histogram of {count} levels")
                for _ in range(count):
                    reader.skip(element)
            else:
                reader.skip(kind)

    def column_chunk(column: int) -> None:
        reader.within({3: lambda: reader.within({16: lambda: size_statistics(column)})})

    def row_group(_: int) -> None:
        reader.within({1: lambda: reader.each(column_chunk)})

    try:
        reader.within({2: lambda: reader.each(schema_element), 4: lambda: reader.each(row_group)})
    except (IndexError, ValueError) as error:
        raise PackError(f"{name}: not a readable table: a damaged footer: {error or 'it breaks off'}") from error
    levels = [2 if each else 1 for each in optional[1:]]  # the first element is the root
    for column, field, count in histograms:
        expected = 1 if field == 2 else levels[column] if column < len(levels) else 0
        if count not in (0, expected):
            raise PackError(
                f"{name}: not a readable table: column {column} has a histogram of {count} levels; expected {expected}"
            )


def check_pages(file: BinaryIO, footer: Any, name: str) -> None:
    """Raise PackError where a row group decompresses to much more than it takes in the file.

    `footer` is pyarrow's FileMetaData of the same file. The place of reading is moved.
    """
    pages, file_nbytes = 0, file.seek(0, os.SEEK_END)
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        decompressed = compressed = 0
        for column in range(group.num_columns):
            for page in _pages(file, file_nbytes, group.column(column), name):
                pages += 1
                if pages > MAX_PAGES:
                    raise PackError(f"{name}: more than {MAX_PAGES} pages")
                decompressed += page.decompressed_nbytes
                compressed += page.compressed_nbytes
        if decompressed > max(FREE_GROUP_NBYTES, MAX_RATIO * compressed):
            raise PackError(
                f"{name}: row group {index} takes {compressed} bytes and decompresses to {decompressed}; at most "
                f"{MAX_RATIO} times its size is read"
            )
    file.seek(0)


def _pages(file: BinaryIO, file_nbytes: int, chunk: Any, name: str) -> Iterator[PageSizes]:
    """The pages of a column chunk, found as a reader finds them: each begins where the one before ends."""
    place = chunk.data_page_offset
    # Without a value there may be a dictionary and no data page, whose place then is 0.
    if chunk.has_dictionary_page and (0 < chunk.dictionary_page_offset < place or not place):
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    if place < 4 or end > file_nbytes or chunk.total_compressed_size < 0:
        raise PackError(f"{name}: a column at bytes {place} to {end} of a file that is shorter")
    while place < end:
        file.seek(place)
        page = page_sizes(file.read(min(_HEADER_NBYTES, end - place)), name)
        place += page.header_nbytes + page.compressed_nbytes
        yield page


def page_sizes(data: bytes, name: str) -> PageSizes:
    """The sizes in the page header with which `data` begins; raises PackError where there is none."""
    reader = _Compact(data)
    sizes: dict[int, int] = {}
    try:
        for field, kind in reader.fields():
            if field in (2, 3) and kind == _I32:
                sizes[field] = reader.integer()
            else:
                reader.skip(kind)
    except (IndexError, ValueError) as error:
        raise PackError(f"{name}: not a readable table: a damaged page header") from error
    if set(sizes) != {2, 3} or min(sizes.values()) < 0:
        raise PackError(f"{name}: not a readable table: a page header without its sizes")
    return PageSizes(reader.place, sizes[2], sizes[3])


class _Compact:
    """Thrift's compact protocol, as far as skipping needs it; IndexError at the end, ValueError for nonsense."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Ids and types of a struct's fields; the caller reads or skips each value before the next."""
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 15

    def within(self, read: Mapping[int, Callable[[], None]]) -> None:
        """A struct, of which some fields are read; these are lists or structs."""
        for field, kind in self.fields():
            if field in read and kind in (_LIST, _STRUCT):
                read[field]()
            else:
                self.skip(kind)

    def each(self, read: Callable[[int], None]) -> None:
        """A list of structs, each read by its place."""
        kind, count = self.list_head()
        if kind != _STRUCT and count:
            raise ValueError(f"a list of type {kind}")
        for index in range(count):
            read(index)

    def list_head(self) -> tuple[int, int]:
        """Type and number of a list's elements, which follow."""
        head = self._byte()
        return head & 15, head >> 4 if head >> 4 < 15 else self._varint()

    def integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if kind in (1, 2):  # a boolean field has its value in its type
            return
        if kind == 3:
            self._forward(1)
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == 7:
            self._forward(8)
        elif kind == 8:
            self._forward(self._varint())
        elif kind in (9, 10):
            element, count = self.list_head()
            for _ in range(min(count, len(self._data))):
                self._forward(1) if element in (1, 2) else self.skip(element, depth + 1)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:  # maps, which page headers have none of
            raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        value = self._data[self.place]
        self.place += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _forward(self, nbytes: int) -> None:
        if nbytes > len(self._data) - self.place:
            raise IndexError
        self.place += nbytes
