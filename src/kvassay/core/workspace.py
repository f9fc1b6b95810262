"""How much working memory one layer's call takes: an append and attention over the pages, tile by tile. No torch.

An upper bound for any format; `core.transient_peak` predicts the figure where the format's methods say what they take.

What is bounded is the transient part, all bytes that are allocated during the call and not held after it, for any
format. It grows with the chunk of new tokens and not with the context, once that is longer than a tile. Decoded
attention (`attention="decoded"`) is not meant: it holds the whole context as floats.

Arrays that a call holds are counted from the shapes. What a codec takes for each value while it works differs from
format to format; two constants stand above the largest of the method table. tests/cache/test_known_faults_memory.py
holds real calls to the bound.
"""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.paging import TAIL_PAGE_TOKENS, page_tokens
from kvassay.core.spec import QuantSpec
from kvassay.core.tiles import ENCODED_ELEMENTS, SCORE_ELEMENTS, TILE_ELEMENTS

ENCODE_NBYTES = 40
"""Most bytes that encoding takes for each value of the piece it works on, its result included."""

DECODE_NBYTES = 30
"""Most bytes that reading takes for each value of one side of a tile, copied pages and the float32 result included."""

_SCALARS_NBYTES = 1 << 14
"""Numbers that operators wrap, index arrays of a page table, scales of a few heads."""


class Workspace(NamedTuple):
    """Upper bounds, in bytes, of one layer's call. The parts of a sum, apart from `encoding` and `reading`: the call
    encodes first and reads later, so it holds the larger of the two."""

    appending_nbytes: int
    """The chunk's keys and values as they enter and as they were encoded, until they are in the pages."""
    encoding_nbytes: int
    reading_nbytes: int
    """One tile of keys, one of values, and their scores."""
    attending_nbytes: int
    """Queries, running sums and output of the chunk."""

    matrices_nbytes: int
    """Rotations and projections, `[head_dim, head_dim]`."""

    @property
    def appending_only_nbytes(self) -> int:
        """The bound of a first call, whose attention reads the model's own keys and values."""
        return self.appending_nbytes + self.encoding_nbytes + self.matrices_nbytes + _SCALARS_NBYTES

    @property
    def nbytes(self) -> int:
        """The bound of the whole call."""
        parts = self.appending_nbytes + self.attending_nbytes + self.matrices_nbytes + _SCALARS_NBYTES
        return parts + max(self.encoding_nbytes, self.reading_nbytes)


def workspace(
    kv_format: KVFormat,
    layer: LayerGeometry,
    query_heads: int,
    *,
    chunk: int,
    context: int,
    batch: int = 1,
    index: int = 0,
    itemsize: int = 4,
) -> Workspace:
    """The working memory of `chunk` new tokens in each of `batch` rows that then see `context` tokens, these included.

    `index` is the layer's number, which a format may treat apart; `itemsize` the bytes of a float of the model.
    """
    computing = max(4, itemsize)
    dims = layer.head_dim + layer.value_dim
    new = batch * layer.kv_heads * chunk * dims
    groups = head_groups(kv_format, index, layer)
    block = max(plan.spec.tokens_per_block for group in groups for plan in (group.keys, group.values))
    page = max(_page(plan.spec) for group in groups for plan in (group.keys, group.values))
    waiting = batch * layer.kv_heads * min(context, chunk + block + TAIL_PAGE_TOKENS)
    row = batch * layer.kv_heads * layer.head_dim
    # A tile has at most so many keys, or one page. Written so, the bound never falls with the context or the batch.
    keys = min(row * context, max(TILE_ELEMENTS, row * page))
    # A tile follows the keys' pages, so the values of it begin and end inside pages of their own.
    value_row = batch * layer.kv_heads * layer.value_dim
    values = min(keys * layer.value_dim // layer.head_dim + 2 * value_row * page, value_row * (context + page))
    scores = keys * query_heads * chunk // (layer.kv_heads * layer.head_dim)
    scores = min(scores, max(SCORE_ELEMENTS, batch * query_heads * chunk * page))
    queries = batch * query_heads * chunk
    piece = max(ENCODED_ELEMENTS, batch * layer.kv_heads * block * max(layer.head_dim, layer.value_dim))
    return Workspace(
        # As given or without padding, rounded, and as codes with what belongs to them; written as a copy in order.
        appending_nbytes=new * (2 * itemsize + 4 + 8),
        encoding_nbytes=ENCODE_NBYTES * min(waiting * max(layer.head_dim, layer.value_dim), piece)
        + 4 * waiting * max(layer.head_dim, layer.value_dim),
        reading_nbytes=computing * (keys + scores * 4)
        + 2 * scores
        + DECODE_NBYTES * computing // 4 * max(keys, values),
        attending_nbytes=queries * (3 * layer.head_dim + 5 * layer.value_dim + 8) * computing,
        matrices_nbytes=3 * 4 * max(layer.head_dim, layer.value_dim) ** 2,
    )


def _page(spec: QuantSpec) -> int:
    return max(page_tokens(spec), TAIL_PAGE_TOKENS)
