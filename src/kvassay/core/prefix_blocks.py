"""Shared prefixes: which tokens form a block, which pages hold it, and the chain of keys. No torch.

A block is `block_tokens` tokens behind the sinks, a whole number of coded pages on every side of every layer; block 0
also holds the sinks. Blocks end where all sides have a block bound, so a block is coded everywhere or is none.

Sides may have fewer sinks than others (float sides, sliding layers have none). On such a side a block ends `offset`
tokens behind a page bound, and the block takes the begin of that page along (`rest_tokens`).

Keys form a chain, `sha256(key before, kind, number of tokens, tokens as little-endian u64)`, whose first link is the
digest of all that must agree (`cache.prefix_identity`). Equal keys therefore mean equal texts from the first token on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.digest import sha256_json
from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.paging import PageLayout, exact_page_layout, page_layout, page_tokens
from kvassay.errors import CacheStateError

TokenIds = NDArray[np.uint64]
"""Token ids of one sequence, `[tokens]`."""


class PageSpan(NamedTuple):
    """Pages of one block on one side: numbers `first` to `end - 1`, and the begin of page `end`."""

    first: int
    end: int
    rest_tokens: int

    @property
    def pages(self) -> int:
        return self.end - self.first + (1 if self.rest_tokens else 0)


class SideGrid(NamedTuple):
    """One side of one head group of one layer."""

    layer: int
    group: int
    side: str
    """`keys` or `values`."""
    plan: SidePlan
    layout: PageLayout
    sinks_layout: PageLayout | None
    """The page of sinks; None where the side keeps none."""
    offset: int
    """Tokens between the side's own sinks and the end of the format's sinks."""
    block_tokens: int

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.group}.{self.side}"

    @property
    def part(self) -> str:
        """`window` for sliding layers, whose old pages nobody needs; else `full`."""
        return "full" if self.plan.sliding_window is None else "window"

    def coded(self, blocks: int) -> int:
        """Tokens behind the side's sinks in so many blocks."""
        return self.offset + blocks * self.block_tokens if blocks else 0

    def span(self, block: int) -> PageSpan:
        end = self.coded(block + 1)
        return PageSpan(self.coded(block) // self.layout.tokens, end // self.layout.tokens, end % self.layout.tokens)

    def dropped(self, blocks: int) -> int:
        """Coded tokens that a sliding layer has left behind after so many blocks."""
        if self.plan.sliding_window is None:
            return 0
        coded, block = self.coded(blocks), self.plan.spec.tokens_per_block
        return min(max(0, coded - self.plan.sliding_window) // block * block, coded)

    def first_block(self, blocks: int) -> int:
        """First of `blocks` blocks whose pages are needed to go on behind them."""
        page = self.dropped(blocks) // self.layout.tokens
        return next((block for block in range(blocks) if page < self.span(block).end), max(0, blocks - 1))


class BlockArray(NamedTuple):
    """Pages of one side in a stored block, `[pages, page_nbytes]`."""

    name: str
    """The side's, and `.sinks` behind it for the sinks."""
    layout: PageLayout
    pages: int

    @property
    def nbytes(self) -> int:
        return self.pages * self.layout.nbytes


class BlockGrid(NamedTuple):
    """How one format's sequences on one model are cut into blocks."""

    sides: tuple[SideGrid, ...]
    sinks: int
    block_tokens: int
    obstacle: str | None
    """Why there are no blocks; None where there are."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that a block is stored in."""
        return tuple(part for part in ("full", "window") if any(side.part == part for side in self.sides))

    def sides_of(self, part: str) -> tuple[SideGrid, ...]:
        return tuple(side for side in self.sides if side.part == part)

    def arrays(self, part: str, block: int) -> tuple[BlockArray, ...]:
        """What `part` of a block holds, in the order in which files hold it."""
        found: list[BlockArray] = []
        for side in self.sides_of(part):
            found.append(BlockArray(side.name, side.layout, side.span(block).pages))
            if block == 0 and side.sinks_layout is not None:
                found.append(BlockArray(f"{side.name}.sinks", side.sinks_layout, 1))
        return tuple(found)

    def end(self, blocks: int) -> int:
        """Tokens in so many blocks."""
        return self.sinks + blocks * self.block_tokens if blocks else 0

    def whole_blocks(self, tokens: int) -> int:
        return 0 if self.obstacle else max(0, (tokens - self.sinks) // self.block_tokens)

    def committed_blocks(self, tokens: int) -> int:
        """Whole blocks that are coded on every side once `tokens` tokens were appended."""
        if self.obstacle:
            return 0
        coded = min(side.plan.sinks + side.plan.committed_tokens(tokens) for side in self.sides)
        return min(self.whole_blocks(tokens), self.whole_blocks(coded))

    def first_block(self, part: str, blocks: int) -> int:
        """First of `blocks` blocks whose `part` is needed."""
        return min((side.first_block(blocks) for side in self.sides_of(part)), default=blocks)


class _Known(NamedTuple):
    grid: BlockGrid
    pages_digest: str


_KNOWN: dict[tuple[KVFormat, CacheGeometry], _Known] = {}
_MOST_KNOWN = 64
"""A process serves few formats on few models, and asks for their grids at every lookup."""


def block_grid(kv_format: KVFormat, geometry: CacheGeometry) -> BlockGrid:
    """The grid of a format on a model's geometry."""
    return _known(kv_format, geometry).grid


def pages_digest(kv_format: KVFormat, geometry: CacheGeometry) -> str:
    """SHA-256 of every page's layout and of the grid of blocks: never inferred from a shape (B52)."""
    return _known(kv_format, geometry).pages_digest


def _known(kv_format: KVFormat, geometry: CacheGeometry) -> _Known:
    found = _KNOWN.get((kv_format, geometry))
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        grid = _made_grid(kv_format, geometry)
        found = _KNOWN[kv_format, geometry] = _Known(grid, _made_digest(grid, kv_format, geometry))
    return found


def _made_grid(kv_format: KVFormat, geometry: CacheGeometry) -> BlockGrid:
    sides: list[SideGrid] = []
    for index, layer in enumerate(geometry.layers):
        for number, group in enumerate(head_groups(kv_format, index, layer)):
            for name, plan, dim in (
                ("keys", group.keys, layer.head_dim),
                ("values", group.values, layer.value_dim),
            ):
                heads = len(group.heads)
                exact = (
                    exact_page_layout(kv_format.exact_dtype, heads, dim, plan.side, plan.sinks) if plan.sinks else None
                )
                layout = page_layout(plan.spec, heads, dim, plan.side)
                sides.append(SideGrid(index, number, name, plan, layout, exact, 0, 0))
    sinks = max(side.plan.sinks for side in sides)
    block = math.lcm(*(page_tokens(side.plan.spec) for side in sides))
    grid = [side._replace(offset=sinks - side.plan.sinks, block_tokens=block) for side in sides]
    uneven = next((side for side in grid if side.offset % side.plan.spec.tokens_per_block), None)
    obstacle = None
    if uneven is not None:
        obstacle = (
            f"{uneven.side} of layer {uneven.layer} keep {uneven.plan.sinks} sinks and are coded "
            f"{uneven.plan.spec.tokens_per_block} tokens at a time, and other sides keep {sinks} sinks, so no length "
            "is a block bound on all sides; use sinks=0, or snapshots"
        )
    return BlockGrid(tuple(grid), sinks, block, obstacle)


def _made_digest(grid: BlockGrid, kv_format: KVFormat, geometry: CacheGeometry) -> str:
    sides = [
        {
            "name": side.name,
            "heads": list(group_heads(kv_format, geometry, side)),
            "offset": side.offset,
            "pages": _described(side.layout),
            "sinks": None if side.sinks_layout is None else _described(side.sinks_layout),
        }
        for side in grid.sides
    ]
    return sha256_json({"sides": sides, "sinks": grid.sinks, "block_tokens": grid.block_tokens})


def group_heads(kv_format: KVFormat, geometry: CacheGeometry, side: SideGrid) -> tuple[int, ...]:
    """KV heads that a side serves."""
    return head_groups(kv_format, side.layer, geometry.layers[side.layer])[side.group].heads


def token_array(token_ids: Sequence[int] | object) -> TokenIds:
    """Token ids as u64; raises CacheStateError unless they are whole numbers from 0 in one sequence."""
    found = np.asarray(token_ids)
    if found.ndim == 2 and found.shape[0] == 1:
        found = found[0]
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu") or (found.size and int(found.min()) < 0):
        raise CacheStateError(
            f"token ids are {found.dtype} of shape {found.shape}; expected whole numbers from 0, one sequence"
        )
    return found.astype(np.uint64)


def block_keys(root: str, tokens: TokenIds, grid: BlockGrid) -> Iterator[str]:
    """Keys of the whole blocks of a text, first block first."""
    key = root
    for block in range(grid.whole_blocks(len(tokens))):
        key = _link(key, b"block", tokens[grid.end(block) : grid.end(block + 1)])
        yield key


def snapshot_key(root: str, keys: Sequence[str], tokens: TokenIds, grid: BlockGrid) -> str:
    """Key of the whole state after exactly these tokens; `keys` are those of their whole blocks."""
    blocks = grid.whole_blocks(len(tokens))
    before = keys[blocks - 1] if blocks else root
    return _link(before, b"snapshot", tokens[grid.end(blocks) :])


def _link(before: str, kind: bytes, tokens: TokenIds) -> str:
    digest = hashlib.sha256(bytes.fromhex(before))
    digest.update(kind + len(tokens).to_bytes(8, "little"))
    digest.update(tokens.astype("<u8").tobytes())
    return digest.hexdigest()


def _described(layout: PageLayout) -> dict[str, object]:
    return {
        "tokens": layout.tokens,
        "block_tokens": layout.block_tokens,
        "kv_heads": layout.kv_heads,
        "tile_nbytes": layout.tile_nbytes,
        "nbytes": layout.nbytes,
        "arrays": [
            {
                "name": region.stream.name,
                "dtype": region.stream.dtype,
                "shape": list(region.stream.block_shape),
                "offset": region.offset,
                "shared": region.shared,
            }
            for region in layout.regions
        ],
    }
