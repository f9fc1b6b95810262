"""What one side of a layer holds while it is encoded, written and read. No torch.

`core.transient_peak` adds the sides of a call. Each function follows one of `cache.side_store`, array by array. Where
the compiled module is there (`by_kernels`) it encodes what it can and puts rows into pages without ordering them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvassay.core.kernel_reach import encodes
from kvassay.core.kv_format import SidePlan
from kvassay.core.methods import Working, method_of
from kvassay.core.paging import (
    TAIL_PAGE_TOKENS,
    PageLayout,
    coded_capacity,
    exact_page_layout,
    page_layout,
    tail_pages,
)
from kvassay.core.spec import DTYPE_NBYTES, FloatDtype, QuantSpec
from kvassay.core.tiles import decoded_tokens, encoded_tokens

_INDEX_NBYTES = 8
"""A page is found by a number of 64 bits."""
_ROTATING_NBYTES = 16
"""A butterfly's input, its rows, the two halves and their join, float32."""
_MEAN_NBYTES = 8


def working_nbytes(spec: QuantSpec) -> Working | None:
    """A codec's working bytes, rotation and mean included; None where its method declares none."""
    declared = method_of(spec).working
    own = declared if declared is None or isinstance(declared, Working) else declared(spec)
    if own is None:
        return None
    if spec.rotation is None and not spec.mean:
        return own
    wrapped = 4 + own.encode_nbytes
    least_encode, least_decode = (_ROTATING_NBYTES, _ROTATING_NBYTES) if spec.rotation else (0, _MEAN_NBYTES)
    encode = max(least_encode, wrapped)
    cast = max(least_encode + 4, wrapped) - encode if spec.rotation else 0
    return Working(encode, max(least_decode, own.decode_nbytes), cast)


class Side(NamedTuple):
    """Keys or values of the layer."""

    plan: SidePlan
    exact_dtype: FloatDtype
    model_dtype: FloatDtype
    batch: int
    kv_heads: int
    dim: int
    by_kernels: bool

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
        return page_layout(self.plan.spec, self.kv_heads, self.dim, self.plan.side)

    @property
    def float_nbytes(self) -> int:
        """Of one token in the tail or the sinks."""
        return self.row * DTYPE_NBYTES[self.exact_dtype]

    def coded_nbytes(self, tokens: int) -> int:
        """Codes with their parameters, without the gaps of a page."""
        layout = self.layout
        return self.batch * tokens // layout.block_tokens * sum(each.stream.block_nbytes for each in layout.regions)

    def new_pages_nbytes(self, before: int, after: int) -> int:
        """Pages that an append takes. Tail pages that it frees serve its own, and what is left of them is not new."""
        plan = self.plan
        old, new = (coded_capacity(plan, plan.committed_tokens(tokens)) for tokens in (before, after))
        nbytes = (new - old) * self.layout.nbytes
        old, new = (tail_pages(plan, max(0, tokens - plan.sinks)) for tokens in (before, after))
        nbytes += max(0, new - old) * self._exact_page(TAIL_PAGE_TOKENS)
        nbytes += self._exact_page(plan.sinks) if plan.sinks and not before else 0
        return self.batch * nbytes

    def _exact_page(self, tokens: int) -> int:
        return exact_page_layout(self.exact_dtype, self.kv_heads, self.dim, self.plan.side, tokens).nbytes

    def encoding(self, before: int, after: int) -> Encoding:
        plan, entering = self.plan, DTYPE_NBYTES[self.entry_dtype] * self.is_cast
        block = plan.spec.tokens_per_block
        old, end = plan.committed_tokens(before), plan.committed_tokens(after)
        first = old + max(0, min(plan.dropped_tokens(after), end) - old) // block * block
        new_begin = max(0, before - plan.sinks)
        step = encoded_tokens(self.row, block)
        result = self._coded_result(end - first)
        largest = 0.0
        for low, high in self._pieces(first, end, new_begin, step):
            held = self._coded_result(low - first)
            largest = max(largest, held + self._piece(low, high, new_begin))
        after_sinks = max(0, after - plan.sinks)
        new_tail = max(0, after_sinks - max(end, new_begin))
        sinks = max(0, min(after, plan.sinks) - before)
        waiting = (new_tail + sinks) * self.row * entering
        return Encoding(largest, result + waiting, self._writing(min(step, end - first), end - first, sinks, new_tail))

    @property
    def _is_native(self) -> bool:
        """True where the compiled module makes the codes, of a chunk as it comes."""
        return self.by_kernels and encodes(self.plan.spec, self.dim)

    def _pieces(self, first: int, end: int, new_begin: int, step: int) -> Iterator[tuple[int, int]]:
        """Those of tokens `first` to `end - 1` that may be the largest: all others are alike."""
        if end <= first:
            return
        if self._is_native:
            block = self.plan.spec.tokens_per_block
            low = first
            while low < new_begin and low < end:
                high = min(low + min(step, -(-(new_begin - low) // block) * block), end)
                yield low, high
                low = high
            if low < end:
                yield low, end
            return
        last = first + max(0, end - first - 1) // step * step
        for low in sorted({first, max(first, last - step), last}):
            yield low, min(low + step, end)

    def _coded_result(self, tokens: int) -> int:
        """Encoded and not yet in the pages; floats of the model's own dtype are the model's arrays."""
        is_same = self.plan.spec.is_exact and not self.is_cast and not self._is_native
        return 0 if is_same else self.coded_nbytes(tokens)

    def _piece(self, low: int, high: int, new_begin: int) -> float:
        """Tokens `low` to `high - 1` while they are encoded."""
        entry = DTYPE_NBYTES[self.entry_dtype]
        values = (high - low) * self.row
        old = max(0, min(high, new_begin) - low)
        new = high - low - old
        reading, waiting = self._waiting(low, low + old) if old else (0, 0)
        entering = new * self.row * entry * (self.is_cast and not (self._is_native and not old))
        joined = values * entry if old and new else 0
        return max(reading, waiting + entering + joined + self._encoded_nbytes(low, high))

    def _encoded_nbytes(self, low: int, high: int) -> float:
        """What a codec takes for a piece, its result included."""
        entry, values = DTYPE_NBYTES[self.entry_dtype], (high - low) * self.row
        if self._is_native:
            return self.coded_nbytes(high - low)  # the module reads the model's own array, whatever its strides
        if self.plan.spec.is_exact:
            return 0
        working = working_nbytes(self.plan.spec)
        assert working is not None, "the caller checks `is_predicted`"
        parameters = self.coded_nbytes(high - low) / values - self._code_nbytes
        taken = working.encode_nbytes + parameters + (working.cast_nbytes if entry == 2 else 0)
        return taken * values

    @property
    def _code_nbytes(self) -> float:
        """Of one value, without parameters."""
        stream = self.layout.regions[0].stream
        return stream.block_nbytes / (self.layout.block_tokens * self.kv_heads * self.dim)

    def _waiting(self, begin: int, end: int) -> tuple[int, int]:
        """Most bytes while tokens are read from the tail, and those of the result: whole pages, or what is cut out."""
        low, high = begin // TAIL_PAGE_TOKENS * TAIL_PAGE_TOKENS, -(-end // TAIL_PAGE_TOKENS) * TAIL_PAGE_TOKENS
        is_cut = self._is_cut(high - low, end - begin)
        pages, cut = (high - low) * self.float_nbytes, (end - begin) * is_cut * self.float_nbytes
        return pages + cut, cut or pages

    def _writing(self, piece: int, coded: int, sinks: int, new_tail: int) -> int:
        """The largest array while it enters the pages: cut from a longer one, and in the order of the pages."""
        largest = max(region.stream.block_nbytes for region in self.layout.regions)
        nbytes = self.batch * piece // self.layout.block_tokens * largest
        has_gaps = not self.is_cast and self.batch * self.kv_heads > 1
        is_slice = self.plan.spec.is_exact and has_gaps and piece < coded
        taken = nbytes * (is_slice + self._is_ordered(piece, self.layout.tokens))
        for tokens, page in ((sinks, max(1, sinks)), (new_tail, TAIL_PAGE_TOKENS)):
            cut = has_gaps and coded + sinks + new_tail > tokens
            taken = max(taken, tokens * self.float_nbytes * (cut + self._is_ordered(tokens, page)))
        return taken

    def _is_ordered(self, tokens: int, page: int) -> bool:
        """True where tokens of several pages and rows are copied to stand as in the pages."""
        if self.by_kernels:
            return False
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


class Encoding(NamedTuple):
    """One side of an append."""

    peak_nbytes: float
    """Most while its pieces are encoded."""
    held_nbytes: float
    """Until it is in the pages."""
    writing_nbytes: float
    """An array in the order of the pages."""
