"""Pages of the cache's store: how large one is, and how many a sequence takes. No torch.

A page holds some consecutive tokens of one side of one layer of one sequence, for all KV heads of a head group:

    [tile of head 0][tile of head 1]...[shared arrays]      tile: [codes][scales][minimums]..., each on a 64-byte bound

with the bytes of an array in the order in which attention reads them (`TileOrder`, docs/design/tile-layout.md). So its
bytes depend on its tokens, their keys or values and the format, and on nothing else. A side has up to three kinds:
coded pages, tail pages (full precision, tokens that wait or that the window protects) and one page of sinks.
The store allocates and the ledger predicts from what is written here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kvassay.core.digest import sha256_json
from kvassay.core.kv_format import Side, SidePlan
from kvassay.core.layout import streams
from kvassay.core.methods import Stream
from kvassay.core.spec import DTYPE_NBYTES, FloatDtype, QuantSpec, exact_spec

PAGE_ORDER = "kvassay.page/2"
"""Names the order of bytes in a page, for all formats: tiles of heads, arrays in the order of the spec, tile orders.

Named anew whenever the same tokens would give a page other bytes, so that saved pages are never misread.
"""

PAGE_TOKENS = 64
"""Tokens of a coded page, rounded up to whole blocks of the spec."""

TAIL_PAGE_TOKENS = 16
"""Tokens of a tail page: small, since a fork copies the last one and the window slides through them."""

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

TABLE_ENTRY_NBYTES = 4
"""A block table holds one page number a page of a sequence."""

PAGE_RECORD_NBYTES = 12
"""Beside each page: its reference count, its slab and its place in the slab."""


KEY_BLOCK_TOKENS = 16
"""Tokens of a line of key words: 16 words of 4 bytes are a cache line, and lanes are tokens."""

VALUE_QUAD_TOKENS = 4
"""Tokens of a word of value codes: a lane is a byte column, and its word holds four tokens of it."""


class TileOrder(NamedTuple):
    """Rows `[tokens, units]` of an array as `[tokens / together][units][together]`, units of some bytes."""

    together: int
    """Tokens whose units stand side by side."""
    unit_nbytes: int


class Region(NamedTuple):
    """Where one stored array lies in a page."""

    stream: Stream
    offset: int
    """Bytes from the begin of the tile; for a shared array, from the begin of the page."""
    shared: bool
    """True for an array that serves all heads."""
    order: TileOrder | None
    """None where blocks lie as they come, one after the other."""

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block of one head."""
        return self.stream.block_nbytes // self.stream.heads


class PageLayout(NamedTuple):
    """A page, byte by byte."""

    tokens: int
    block_tokens: int
    kv_heads: int
    regions: tuple[Region, ...]
    tile_nbytes: int
    """One head's part."""
    nbytes: int

    @property
    def blocks(self) -> int:
        return self.tokens // self.block_tokens


@lru_cache(maxsize=1024)
def page_layout(spec: QuantSpec, kv_heads: int, dim: int, side: Side, tokens: int | None = None) -> PageLayout:
    """The page of a side's spec; `tokens` of it, or PAGE_TOKENS rounded up to whole blocks.

    Raises GeometryError where the spec cannot serve `dim`.
    """
    page = page_tokens(spec) if tokens is None else tokens
    blocks = page // spec.tokens_per_block
    regions: list[Region] = []
    tile = 0
    arrays = streams(spec, kv_heads, dim)
    for stream in arrays:
        if stream.heads == kv_heads:
            region = Region(stream, tile, shared=False, order=_order(stream, spec, side, page))
            tile = _aligned(tile + blocks * region.block_nbytes)
            regions.append(region)
    end = kv_heads * tile
    for stream in arrays:
        if stream.heads != kv_heads:
            region = Region(stream, end, shared=True, order=_order(stream, spec, side, page))
            end = _aligned(end + blocks * region.block_nbytes)
            regions.append(region)
    return PageLayout(page, spec.tokens_per_block, kv_heads, tuple(regions), tile, end)


def layout_id(layout: PageLayout) -> str:
    """SHA-256 of everything that says what each byte of a page is: where an array lies, its type and shape, the order.

    Pages of equal size but different ids hold different things (int8 and fp8 codes, two heads and two sequences).
    """
    arrays = [
        {
            "name": region.stream.name,
            "dtype": region.stream.dtype,
            "heads": region.stream.heads,
            "block_shape": list(region.stream.block_shape),
            "offset": region.offset,
            "shared": region.shared,
            "order": None if region.order is None else list(region.order),
        }
        for region in layout.regions
    ]
    sizes = {
        "tokens": layout.tokens,
        "block_tokens": layout.block_tokens,
        "kv_heads": layout.kv_heads,
        "tile_nbytes": layout.tile_nbytes,
        "nbytes": layout.nbytes,
    }
    return sha256_json({"order": PAGE_ORDER, "arrays": arrays, **sizes})


@lru_cache(maxsize=256)
def exact_page_layout(dtype: FloatDtype, kv_heads: int, dim: int, side: Side, tokens: int) -> PageLayout:
    """The page of sinks or of the tail."""
    return page_layout(exact_spec(dtype), kv_heads, dim, side, tokens)


def _order(stream: Stream, spec: QuantSpec, side: Side, page: int) -> TileOrder | None:
    """The order in which attention reads an array; None where its rows stay as they are.

    Keys: words of 4 bytes, 16 tokens side by side. Codes of values: bytes, four tokens side by side; floats of values
    stay in rows. Scales of single tokens: all tokens of the page side by side.
    """
    itemsize = DTYPE_NBYTES[stream.dtype]
    if stream.name == "codes":
        row_nbytes = stream.block_nbytes // stream.heads // spec.tokens_per_block
        if side == "keys" and page % KEY_BLOCK_TOKENS == 0 and row_nbytes % 4 == 0:
            return TileOrder(KEY_BLOCK_TOKENS, 4)
        if side == "values" and page % VALUE_QUAD_TOKENS == 0 and itemsize == 1:
            return TileOrder(VALUE_QUAD_TOKENS, 1)
    elif stream.name in ("scales", "minimums") and spec.tokens_per_block == 1:
        return TileOrder(page, itemsize)
    return None


def page_tokens(spec: QuantSpec) -> int:
    """Tokens of one coded page: PAGE_TOKENS, rounded up to whole blocks of the spec."""
    block = spec.tokens_per_block
    return -(-PAGE_TOKENS // block) * block


class SidePages(NamedTuple):
    """What one sequence of `tokens` tokens, appended and never cropped, holds on one side."""

    sink_tokens: int
    tail_tokens: int
    stored_tokens: int
    """Tokens read from codes."""
    tail_pages: int
    """Those that hold tokens now."""
    tail_numbers: int
    """Page numbers kept for the tail: records and places in the block table, without their pages."""
    coded_pages: int
    """Allocated; in a sliding layer up to one more than holds tokens."""

    @property
    def sink_pages(self) -> int:
        return 1 if self.sink_tokens else 0

    @property
    def page_numbers(self) -> int:
        """Each has a record and a place in a block table."""
        return self.coded_pages + self.tail_numbers + self.sink_pages


def side_pages(plan: SidePlan, tokens: int) -> SidePages:
    """Pages and tokens of a side.

    All of it is a function of the length, however the tokens came. The tail's pages are given back as soon as they hold
    no token, so they rise and fall with the tokens that wait. Coded pages that a sliding layer has left behind are used
    again, so they grow with the length up to a bound and then stay.
    """
    sinks = min(tokens, plan.sinks)
    committed = plan.committed_tokens(tokens)
    after_sinks = tokens - sinks
    return SidePages(
        sink_tokens=sinks,
        tail_tokens=after_sinks - committed,
        stored_tokens=committed - plan.dropped_tokens(tokens),
        tail_pages=tail_pages(plan, after_sinks),
        tail_numbers=tail_capacity(plan, after_sinks),
        coded_pages=coded_capacity(plan, committed),
    )


def tail_pages(plan: SidePlan, after_sinks: int) -> int:
    """Tail pages that hold tokens of a sequence with `after_sinks` tokens after its sinks."""
    coded = plan.committed_tokens(after_sinks + plan.sinks)
    return -(-after_sinks // TAIL_PAGE_TOKENS) - coded // TAIL_PAGE_TOKENS if coded < after_sinks else 0


def tail_capacity(plan: SidePlan, after_sinks: int) -> int:
    """At least the most tail pages that a sequence has had once `after_sinks` tokens stand after its sinks.

    So many page numbers are kept, since a number cannot change while a block table names it.
    """
    longest = plan.recent + plan.spec.tokens_per_block - 1
    if longest == 0:
        return 0
    # A range of that length that begins anywhere meets one page more; after whole blocks it begins on a page bound.
    anywhere = 0 if plan.spec.tokens_per_block % TAIL_PAGE_TOKENS == 0 else 1
    return min(-(-after_sinks // TAIL_PAGE_TOKENS), -(-longest // TAIL_PAGE_TOKENS) + anywhere)


def coded_capacity(plan: SidePlan, committed: int) -> int:
    """Coded pages that a sequence with `committed` coded tokens keeps allocated."""
    page = page_tokens(plan.spec)
    pages = -(-committed // page)
    if plan.sliding_window is None:
        return pages
    longest = max(0, plan.sliding_window - plan.recent + plan.spec.tokens_per_block)
    return min(pages, -(-longest // page) + 1)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
