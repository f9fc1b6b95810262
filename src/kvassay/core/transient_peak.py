"""What one layer's call needs beyond what it leaves behind, predicted: prefill, flush and decode. No torch.

`core.workspace` bounds any call from above; this counts the arrays that the cache's code holds at its fullest moments,
for a cache on the tiled path whose rows are not padded. Lengths and pieces follow `core.tiles`, as the cache does; what a
codec takes while it works is its method's own row (`Method.working`). Bytes are those asked of the allocator.

The moments of a call: the last piece of keys or of values is encoded, while all before it is held and pages that will
be kept are not yet allocated; everything is encoded and enters the pages; one side of one tile is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.methods import Working, method_of
from kvassay.core.paging import (
    TAIL_PAGE_TOKENS,
    PageLayout,
    coded_capacity,
    exact_page_layout,
    page_layout,
    tail_capacity,
)
from kvassay.core.spec import DTYPE_NBYTES, FloatDtype, QuantSpec
from kvassay.core.tiles import decoded_tokens, encoded_tokens, tile_tokens
from kvassay.core.workspace import workspace

_INDEX_NBYTES = 8
"""A page is found by a number of 64 bits."""
_ROTATING_NBYTES = 16
"""A butterfly's input, its rows, the two halves and their join, float32."""
_MEAN_NBYTES = 8


class Phase(StrEnum):
    """A kind of call."""

    PREFILL = "prefill"
    """All tokens in one call, into an empty cache."""
    FLUSH = "flush"
    """A step of one token that completes a block of several."""
    DECODE = "decode"
    """A step of one token that completes none."""


class TransientBasis(StrEnum):
    """What a transient figure claims."""

    PREDICTED = "predicted"
    """Within 10% of what the allocator hands out (`tests/core/test_transient_peak.py`)."""
    BOUND = "bound"
    """Not less than that: some layer's format has no prediction, and `core.workspace` bounds it."""


class TransientPeaks(BaseModel):
    """Most transient bytes of one layer's call, over all layers, at one length and batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    basis: TransientBasis
    prefill_nbytes: int
    """All tokens in one call, into the empty cache."""
    flush_nbytes: int | None
    """None where no step completes a block of several tokens."""
    decode_nbytes: int
    step_bound_nbytes: int
    """Upper bound of any step (`core.workspace`). Unlike the others it never falls with the tokens or the batch."""

    @property
    def largest_nbytes(self) -> int:
        return max(self.prefill_nbytes, self.flush_nbytes or 0, self.decode_nbytes)


def transient_peaks(geometry: CacheGeometry, kv_format: KVFormat, tokens: int, batch: int = 1) -> TransientPeaks:
    """Of a float32 model whose cache holds `tokens` tokens in each of `batch` rows."""
    basis = TransientBasis.PREDICTED
    found: dict[Phase, int] = {}
    step_bound = 0
    alike: set[tuple[object, ...]] = set()
    for index, layer in enumerate(geometry.layers):
        kind = (layer, head_groups(kv_format, index, layer))
        if kind in alike:
            continue
        alike.add(kind)
        query_heads = geometry.query_heads
        bound = workspace(kv_format, layer, query_heads, chunk=1, context=tokens, batch=batch, index=index)
        step_bound = max(step_bound, bound.nbytes)
        predicted = is_predicted(kv_format, index, layer)
        if not predicted:
            basis = TransientBasis.BOUND
        for phase in Phase:
            call = layer_peak if predicted else _layer_bound
            nbytes = call(kv_format, index, layer, query_heads, phase, tokens=tokens, batch=batch)
            if nbytes is not None:
                found[phase] = max(found.get(phase, 0), nbytes)
    return TransientPeaks(
        basis=basis,
        prefill_nbytes=found[Phase.PREFILL],
        flush_nbytes=found.get(Phase.FLUSH),
        decode_nbytes=found.get(Phase.DECODE, 0),
        step_bound_nbytes=step_bound,
    )


def _layer_bound(
    kv_format: KVFormat,
    index: int,
    layer: LayerGeometry,
    query_heads: int,
    phase: Phase,
    *,
    tokens: int,
    batch: int,
) -> int | None:
    if call_tokens(kv_format, index, layer, phase, tokens) is None:
        return None
    chunk = tokens if phase is Phase.PREFILL else 1
    bound = workspace(kv_format, layer, query_heads, chunk=chunk, context=tokens, batch=batch, index=index)
    return bound.appending_only_nbytes if phase is Phase.PREFILL else bound.nbytes


def working_nbytes(spec: QuantSpec) -> Working | None:
    """A codec's working bytes, rotation and mean included; None where its method declares none."""
    declared = method_of(spec).working
    if declared is None:
        return None
    own = declared(spec)
    if own is None:
        return None
    if spec.rotation is None and not spec.mean:
        return own
    wrapped = 4 + own.encode_nbytes
    least_encode, least_decode = (_ROTATING_NBYTES, _ROTATING_NBYTES) if spec.rotation else (0, _MEAN_NBYTES)
    encode = max(least_encode, wrapped)
    cast = max(least_encode + 4, wrapped) - encode if spec.rotation else 0
    return Working(encode, max(least_decode, own.decode_nbytes), cast)


def is_predicted(kv_format: KVFormat, index: int, layer: LayerGeometry) -> bool:
    """False where only `workspace` says something: transformed keys, heads of several formats, undeclared methods."""
    groups = head_groups(kv_format, index, layer)
    return (
        len(groups) == 1
        and not kv_format.transforms_keys
        and all(plan.spec.is_exact or working_nbytes(plan.spec) for plan in (groups[0].keys, groups[0].values))
    )


def call_tokens(kv_format: KVFormat, index: int, layer: LayerGeometry, phase: Phase, tokens: int) -> int | None:
    """The largest length up to `tokens` that a call of this kind ends at; None where the format has no such call."""
    if phase is Phase.PREFILL:
        return tokens
    plans = [plan for group in head_groups(kv_format, index, layer) for plan in (group.keys, group.values)]
    blocked = [plan for plan in plans if plan.spec.tokens_per_block > 1]

    def completes(length: int) -> bool:
        return any(plan.committed_tokens(length) > plan.committed_tokens(length - 1) for plan in blocked)

    if phase is Phase.DECODE:
        # Each side completes a block at every other length at most.
        return next((length for length in range(tokens, max(1, tokens - 4), -1) if not completes(length)), None)
    ends = (
        plan.sinks + plan.recent + plan.committed_tokens(tokens) for plan in blocked if plan.committed_tokens(tokens)
    )
    return next((length for length in sorted(ends, reverse=True) if length > 1), None)


def layer_peak(
    kv_format: KVFormat,
    index: int,
    layer: LayerGeometry,
    query_heads: int,
    phase: Phase,
    *,
    tokens: int,
    batch: int = 1,
    dtype: FloatDtype = "float32",
) -> int | None:
    """Transient bytes of one call; None where there is no such call.

    `tokens` are held in each row after it; steps take the largest length up to it that is of their kind. `dtype` is
    the model's. Only where `is_predicted`.
    """
    group = head_groups(kv_format, index, layer)[0]
    length = call_tokens(kv_format, index, layer, phase, tokens)
    if length is None:
        return None
    before = 0 if phase is Phase.PREFILL else length - 1
    sides = [
        _Side(plan, kv_format.exact_dtype, dtype, batch, layer.kv_heads, dim)
        for plan, dim in ((group.keys, layer.head_dim), (group.values, layer.value_dim))
    ]
    appending = _append(sides, before, length)
    if phase is Phase.PREFILL:
        return round(appending)
    return round(max(appending, _attend(sides[0], sides[1], query_heads, length)))


class _Side(NamedTuple):
    """Keys or values of the layer."""

    plan: SidePlan
    exact_dtype: FloatDtype
    model_dtype: FloatDtype
    batch: int
    kv_heads: int
    dim: int

    @property
    def row(self) -> int:
        """Values of one token of all rows."""
        return self.batch * self.kv_heads * self.dim

    @property
    def entry_dtype(self) -> str:
        return self.plan.spec.code_dtype if self.plan.spec.is_exact else self.exact_dtype

    @property
    def is_cast(self) -> bool:
        """True where entering values are another array than the model's."""
        return self.entry_dtype != self.model_dtype

    @property
    def layout(self) -> PageLayout:
        return page_layout(self.plan.spec, self.kv_heads, self.dim)

    @property
    def float_nbytes(self) -> int:
        """Of one token in the tail or the sinks."""
        return self.row * DTYPE_NBYTES[self.exact_dtype]

    def coded_nbytes(self, tokens: int) -> int:
        """Codes with their parameters, without the gaps of a page."""
        layout = self.layout
        return self.batch * tokens // layout.block_tokens * sum(each.stream.block_nbytes for each in layout.regions)

    def pages_nbytes(self, tokens: int) -> int:
        """Allocated pages of a sequence of so many tokens."""
        coded = self.plan.committed_tokens(tokens)
        after_sinks = max(0, tokens - self.plan.sinks)
        nbytes = coded_capacity(self.plan, coded) * self.layout.nbytes
        nbytes += tail_capacity(self.plan, after_sinks) * self._exact_page(TAIL_PAGE_TOKENS)
        return self.batch * nbytes

    def sinks_nbytes(self, tokens: int) -> int:
        return self.batch * self._exact_page(self.plan.sinks) if self.plan.sinks and tokens else 0

    def _exact_page(self, tokens: int) -> int:
        return exact_page_layout(self.exact_dtype, self.kv_heads, self.dim, tokens).nbytes

    def encoding(self, before: int, after: int) -> _Encoding:
        plan, entering = self.plan, DTYPE_NBYTES[self.entry_dtype] * self.is_cast
        block = plan.spec.tokens_per_block
        old, end = plan.committed_tokens(before), plan.committed_tokens(after)
        first = old + max(0, min(plan.dropped_tokens(after), end) - old) // block * block
        new_begin = max(0, before - plan.sinks)
        step = encoded_tokens(self.row, block)
        result = self._coded_result(end - first)
        largest = 0.0
        last = first + max(0, end - first - 1) // step * step
        for low in sorted({first, max(first, last - step), last}) if end > first else ():
            high = min(low + step, end)
            held = self._coded_result(low - first)
            largest = max(largest, held + self._piece(low, high, new_begin))
        after_sinks = max(0, after - plan.sinks)
        new_tail = max(0, after_sinks - max(end, new_begin))
        sinks = max(0, min(after, plan.sinks) - before)
        waiting = (new_tail + sinks) * self.row * entering
        return _Encoding(largest, result + waiting, self._writing(min(step, end - first), end - first, sinks, new_tail))

    def _coded_result(self, tokens: int) -> int:
        """Encoded and not yet in the pages; floats of the model's own dtype are the model's arrays."""
        return 0 if self.plan.spec.is_exact and not self.is_cast else self.coded_nbytes(tokens)

    def _piece(self, low: int, high: int, new_begin: int) -> float:
        """Tokens `low` to `high - 1` while they are encoded."""
        entry = DTYPE_NBYTES[self.entry_dtype]
        values = (high - low) * self.row
        old = max(0, min(high, new_begin) - low)
        new = high - low - old
        waiting = self._raw_floats(low, low + old) if old else 0
        entering = new * self.row * entry * self.is_cast
        joined = values * entry if old and new else 0
        if self.plan.spec.is_exact:
            return waiting + entering + joined
        working = working_nbytes(self.plan.spec)
        assert working is not None, "the caller checks `is_predicted`"
        parameters = self.coded_nbytes(high - low) / values - self._code_nbytes
        taken = working.encode_nbytes + parameters + (working.cast_nbytes if entry == 2 else 0)
        return waiting + entering + joined + taken * values

    @property
    def _code_nbytes(self) -> float:
        """Of one value, without parameters."""
        stream = self.layout.regions[0].stream
        return stream.block_nbytes / (self.layout.block_tokens * self.kv_heads * self.dim)

    def _raw_floats(self, begin: int, end: int) -> int:
        """Tail pages that are copied to read some tokens, and the tokens cut from them."""
        low, high = begin // TAIL_PAGE_TOKENS * TAIL_PAGE_TOKENS, -(-end // TAIL_PAGE_TOKENS) * TAIL_PAGE_TOKENS
        is_cut = self._is_cut(high - low, end - begin)
        return (high - low + (end - begin) * is_cut) * self.float_nbytes

    def _writing(self, piece: int, coded: int, sinks: int, new_tail: int) -> int:
        """The largest array while it enters the pages: cut from a longer one, and in the order of the pages."""
        largest = max(region.stream.block_nbytes for region in self.layout.regions)
        nbytes = self.batch * piece // self.layout.block_tokens * largest
        is_slice = self.plan.spec.is_exact and not self.is_cast and piece < coded
        taken = nbytes * (is_slice + self._is_ordered(piece, self.layout.tokens))
        for tokens, page in ((sinks, max(1, sinks)), (new_tail, TAIL_PAGE_TOKENS)):
            cut = not self.is_cast and coded + sinks + new_tail > tokens
            taken = max(taken, tokens * self.float_nbytes * (cut + self._is_ordered(tokens, page)))
        return taken

    def _is_ordered(self, tokens: int, page: int) -> bool:
        """True where tokens of several pages and rows are copied to stand as in the pages."""
        whole = tokens // page
        return min(self.batch, whole) > 1 and (self.kv_heads > 1 or tokens > whole * page)

    def reading(self, low: int, high: int, length: int) -> float:
        """Most bytes while tokens `low` to `high - 1` of `length` are read as float32, the result included."""
        sinks = min(length, self.plan.sinks)
        coded_end = sinks + self.plan.committed_tokens(length)
        page, step = self.layout.tokens, decoded_tokens(self.row, self.layout.tokens)
        parts: list[float] = []
        first_result = 4 * self.row * (min(high, sinks if low < sinks else coded_end) - low)
        if low < (end := min(high, sinks)):
            parts.append(self._float_part(sinks, end - low))
        begin, end = max(low, sinks), min(high, coded_end)
        while begin < end:
            bound = min(end, sinks + (begin - sinks) // page * page + step)
            parts.append(self._coded_part(begin - sinks, bound - sinks))
            begin = bound
        if (begin := max(low, coded_end)) < high:
            first, last = begin - sinks, high - sinks
            first_page, last_page = first // TAIL_PAGE_TOKENS, -(-last // TAIL_PAGE_TOKENS)
            pages = (last_page - first_page) * TAIL_PAGE_TOKENS
            parts.append(self._float_part(pages, last - first))
        if len(parts) == 1:
            return parts[0]
        # All together are joined in one array, which is made once the first is decoded.
        together = 4 * (high - low) * self.row
        return max(parts[0], together + max(first_result, *parts[1:]))

    def _is_cut(self, in_pages: int, wanted: int) -> bool:
        """True where what is wanted of some pages is copied: of one row and head it follows without a gap."""
        return wanted < in_pages and self.batch * self.kv_heads > 1

    def _float_part(self, in_pages: int, tokens: int, dtype: str | None = None) -> float:
        nbytes = self.row * DTYPE_NBYTES[dtype or self.exact_dtype]
        raw, cut = in_pages * nbytes, tokens * nbytes * self._is_cut(in_pages, tokens)
        widened = 0 if DTYPE_NBYTES[dtype or self.exact_dtype] == 4 else 4 * tokens * self.row
        return max(raw + cut, (cut or raw) + widened)

    def _coded_part(self, begin: int, end: int) -> float:
        layout = self.layout
        pages = -(-end // layout.tokens) - begin // layout.tokens
        block = layout.block_tokens
        blocks = -(-end // block) - begin // block
        is_cut = self._is_cut(pages * layout.blocks, blocks)
        if self.plan.spec.is_exact:
            return self._float_part(pages * layout.tokens, end - begin, self.entry_dtype)
        wide = [each.stream for each in layout.regions if DTYPE_NBYTES[each.stream.dtype] > 1]
        cut = self.batch * blocks * sum(stream.block_nbytes for stream in wide) if is_cut else 0
        raw = self.coded_nbytes(pages * layout.tokens)
        replaced = self.batch * pages * layout.blocks * sum(stream.block_nbytes for stream in wide) if is_cut else 0
        working = working_nbytes(self.plan.spec)
        assert working is not None, "the caller checks `is_predicted`"
        decoding = working.decode_nbytes * blocks * block * self.row
        return max(raw + cut, raw - replaced + cut + decoding) + _INDEX_NBYTES * pages * self.batch


class _Encoding(NamedTuple):
    """One side of an append."""

    peak_nbytes: float
    """Most while its pieces are encoded."""
    held_nbytes: float
    """Until it is in the pages."""
    writing_nbytes: float
    """An array in the order of the pages."""


def _append(sides: list[_Side], before: int, after: int) -> float:
    """Most bytes beyond those of the pages after it. Pages count once they are allocated, which is side by side."""
    encodings = [side.encoding(before, after) for side in sides]
    new_pages = [side.pages_nbytes(after) - side.pages_nbytes(before) for side in sides]
    sinks = sum(side.sinks_nbytes(after) - side.sinks_nbytes(before) for side in sides)
    kept = sum(new_pages) + sinks
    held = allocated = 0.0
    largest = 0.0
    for encoding, pages in zip(encodings, new_pages, strict=True):
        largest = max(largest, allocated + held + encoding.peak_nbytes - kept)
        held += encoding.held_nbytes
        allocated += pages
    return max(largest, held + max(each.writing_nbytes for each in encodings))


def _attend(keys: _Side, values: _Side, query_heads: int, length: int) -> float:
    """A step's attention: the queries, and one side of a tile with its scores."""
    queries = keys.batch * query_heads
    held = queries * (DTYPE_NBYTES[keys.model_dtype] * values.dim + 4 * keys.dim + 4 * values.dim + 8)
    largest = 0.0
    for low, high in _tiles(keys, values, query_heads, length):
        scores = 4 * queries * (high - low)
        result = 4 * keys.row * (high - low)
        largest = max(largest, keys.reading(low, high, length), result + scores)
        largest = max(largest, scores + values.reading(low, high, length))
    return held + largest


def _tiles(keys: _Side, values: _Side, query_heads: int, length: int) -> Iterator[tuple[int, int]]:
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
