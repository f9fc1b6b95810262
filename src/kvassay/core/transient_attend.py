"""What a decode step's attention holds for a while: by compiled kernels, or tile by tile in torch. No torch.

`core.transient_peak` takes the larger of this and of the step's append.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvassay.core.kernel_reach import in_place
from kvassay.core.methods import InPlace
from kvassay.core.spec import DTYPE_NBYTES
from kvassay.core.tiles import KERNEL_RANGE_TOKENS, tile_tokens
from kvassay.core.transient_side import Side

_PARTIAL_NBYTES = 24
"""What a kernel keeps of a query and a range of tokens beside its sums: two floats and two pointers."""
_ADDRESS_NBYTES = 8


def kernel_tensors_nbytes(keys: Side, values: Side, query_heads: int) -> int:
    """Tensors of a step that kernels serve: the query as float32, and sums, apart for values in another basis."""
    queries = keys.batch * query_heads
    is_wide = DTYPE_NBYTES[keys.model_dtype] == 4
    query, out = 0 if is_wide else 4 * keys.dim, 4 * values.dim
    coded_query = 4 * keys.dim * (in_place(keys.plan.spec) is InPlace.BASIS)
    coded_out = 4 * values.dim * (in_place(values.plan.spec) is InPlace.BASIS)
    # The product with the basis is made once the query in the keys' basis is gone.
    called = query + out + coded_out + max(coded_query, coded_out)
    return queries * max(called, query + out + (0 if is_wide else DTYPE_NBYTES[keys.model_dtype] * values.dim))


def kernel_scratch_nbytes(keys: Side, values: Side, query_heads: int, length: int) -> int:
    """Memory of the kernels that no tensor owns, while one thread runs them: sums of each range, addresses of pages.

    What a thread works in besides, less than 1 MiB, stays with it.
    """
    queries = keys.batch * query_heads
    window = keys.plan.sliding_window
    begin = 0 if window is None else max(0, length - window)
    ranges = -(-length // KERNEL_RANGE_TOKENS) - begin // KERNEL_RANGE_TOKENS
    is_apart = in_place(values.plan.spec) is InPlace.BASIS
    sums = queries * ranges * (_PARTIAL_NBYTES + 4 * values.dim * (1 + is_apart))
    pages = sum(-(-(length - begin) // side.layout.tokens) for side in (keys, values))
    return sums + _ADDRESS_NBYTES * keys.batch * pages


def tiled_nbytes(keys: Side, values: Side, query_heads: int, length: int) -> float:
    """A step that is read tile by tile: the queries, and one side of a tile with its scores."""
    queries = keys.batch * query_heads
    held = queries * (DTYPE_NBYTES[keys.model_dtype] * values.dim + 4 * keys.dim + 4 * values.dim + 8)
    largest = 0.0
    for low, high in _tiles(keys, values, query_heads, length):
        scores = 4 * queries * (high - low)
        result = 4 * keys.row * (high - low)
        largest = max(largest, keys.reading(low, high, length), result + scores)
        largest = max(largest, scores + values.reading(low, high, length))
    return held + largest


def _tiles(keys: Side, values: Side, query_heads: int, length: int) -> Iterator[tuple[int, int]]:
    """Those that may be the largest: at both ends, and where codes end on either side. All others are alike."""
    window = keys.plan.sliding_window
    begin = 0 if window is None else max(0, length - window)
    page, sinks = keys.layout.tokens, keys.plan.sinks
    step = tile_tokens(keys.row, keys.batch * query_heads, page)
    first_end = sinks + (begin - sinks) // page * page + step
    last = max(0, -(-(length - first_end) // step))
    codes_end = [side.plan.sinks + side.plan.committed_tokens(length) for side in (keys, values)]
    near = [(end - first_end) // step + shift for end in codes_end for shift in (0, 1, 2)]
    for index in sorted({0, 1, last - 1, last, *near}):
        if 0 <= index <= last:
            end = first_end + index * step
            yield max(begin, end - step) if index else begin, min(length, end)
