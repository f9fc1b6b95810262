"""SideStore: the stored keys or values of one layer, for sequences of equal length.

Tokens stand in three parts: sinks, coded tokens, and a full-precision tail of those that the recent window protects or
whose block is not full. Every value is first rounded to the exact dtype, whether it will wait or be encoded at once, so
codes never depend on how the tokens were chunked. A committed code never changes.

What a crop does. Tokens at the end are forgotten. Coded tokens become exact again as far as exact copies are still
held: all that `recording` kept since the last crop, so that a rejected draft leaves no trace. Without it those that
stay keep their codes, and the window fills up again from new tokens. A block of several tokens that is cut keeps the
codes of the rest, and the next block begins behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.cache.key_transform import KeyTransform, decode_keys
from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.slab_storage import SlabStorage
from kvassay.cache.stored_bytes import stored_nbytes
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import SidePlan
from kvassay.core.layout import static_nbytes
from kvassay.core.paging import (
    TAIL_PAGE_TOKENS,
    PageLayout,
    coded_capacity,
    exact_page_layout,
    page_layout,
    tail_capacity,
)
from kvassay.core.spec import FloatDtype
from kvassay.core.tiles import decoded_tokens, encoded_tokens
from kvassay.errors import CacheStateError, KvassayError, RangeError
from kvassay.formats import Calibration, Encoded, quantizer
from kvassay.formats.base import Streams, decode_as, require_finite
from kvassay.formats.floating import require_fits

OnClip = Literal["raise", "count"]

SlabsFor = Callable[[PageLayout, torch.device], SlabStorage]
"""Makes the storage of a pool of coded pages."""

RECORDED_TOKENS = 256
"""While recording, a crop of up to this many tokens finds everything as it was."""


class Change(NamedTuple):
    """An append that is worked out and not yet made. Token numbers count from the end of the sinks."""

    tokens: int
    """Tokens of the store after it."""
    new_sinks: Tensor
    coded: int
    """End of the coded tokens."""
    dropped: int
    """Coded tokens before it leave a sliding layer."""
    first_encoded: int
    encoded: tuple[Encoded, ...]
    kept_from: int
    """Exact copies are held from here on."""
    new_tail: Tensor
    """The last of the new values, which enter the tail."""


class SideParts(NamedTuple):
    """The pages of a store that holds tokens."""

    coded_pool: PagePool
    runs: tuple[PagedRows, ...]
    """Coded tokens, all in `coded_pool`."""
    tail: PagedRows
    sinks: PagedRows


class SideStore:
    """Sinks, committed codes and full-precision tail of one side of one layer, in that order of tokens."""

    def __init__(
        self,
        plan: SidePlan,
        kv_heads: int,
        dim: int,
        exact_dtype: FloatDtype,
        *,
        calibration: Calibration | None = None,
        key_transform: KeyTransform | None = None,
        on_clip: OnClip = "raise",
        name: str = "values",
        slabs_for: SlabsFor | None = None,
    ) -> None:
        self.plan = plan
        self.kv_heads = kv_heads
        self.dim = dim
        self.tokens = 0
        """Tokens appended so far, those that a sliding window dropped included."""
        self.coded = 0
        """End of the coded tokens, counted from the end of the sinks."""
        self.dropped = 0
        """Coded tokens that a sliding window has left behind."""
        self.clipped_values = 0
        self.encoded_values = 0
        self.recording = False
        self._quantizer = quantizer(plan.spec)
        self._calibration = calibration
        # Plain floats are stored as they are: only codes gain from another form of the key.
        self._key_transform = None if plan.spec.is_exact else key_transform
        self._on_clip: OnClip = on_clip
        self._name = name
        self._slabs_for = slabs_for
        self._entry_dtype: str = plan.spec.code_dtype if plan.spec.is_exact else exact_dtype
        self.static_nbytes = static_nbytes(plan.spec, kv_heads, dim)
        self.coded_layout: PageLayout = page_layout(plan.spec, kv_heads, dim)
        self.tail_layout: PageLayout = exact_page_layout(exact_dtype, kv_heads, dim, TAIL_PAGE_TOKENS)
        self.sinks_layout: PageLayout = exact_page_layout(exact_dtype, kv_heads, dim, max(1, plan.sinks))
        self._runs: list[PagedRows] = []
        """Coded tokens; more than one run only after a block was cut."""
        self._tail: PagedRows | None = None
        self._sinks: PagedRows | None = None
        self._coded_pool: PagePool | None = None
        self._coded_columns = 0

    @property
    def batch(self) -> int:
        """Rows; 0 while the store is empty."""
        return 0 if self._tail is None or not self.tokens else self._tail.rows

    @property
    def first_token(self) -> int:
        """Index of the oldest token that `read` returns; above 0 once a sliding window dropped some."""
        return self.dropped

    @property
    def stored_tokens(self) -> int:
        """Tokens that are read back from codes (not from sinks or tail)."""
        return self.coded - self.dropped

    @property
    def sink_tokens(self) -> int:
        return min(self.tokens, self.plan.sinks)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self._tail is None else self._tail.pool.device

    @property
    def pools(self) -> Iterator[PagePool]:
        """Real storages; a fork shares them."""
        if self._coded_pool is not None:
            yield self._coded_pool
        for part in (self._tail, self._sinks):
            if part is not None:
                yield part.pool

    @property
    def parts(self) -> SideParts | None:
        """The pages themselves, not a copy; None while no token is held."""
        if not self.tokens:
            return None
        assert self._coded_pool is not None, "made with the first token"
        assert self._tail is not None, "made with the first token"
        assert self._sinks is not None, "made with the first token"
        return SideParts(self._coded_pool, self.coded_pages, self._tail, self._sinks)

    @parts.setter
    def parts(self, parts: SideParts | None) -> None:
        """Take pages as they are; the caller sets the counts of tokens that belong to them."""
        self._coded_pool = None if parts is None else parts.coded_pool
        self._runs = [] if parts is None else list(parts.runs)
        self._tail = None if parts is None else parts.tail
        self._sinks = None if parts is None else parts.sinks

    @property
    def coded_pages(self) -> tuple[PagedRows, ...]:
        """The coded tokens: one run, and more only after blocks were cut."""
        return tuple(run for run in self._runs if run.tokens)

    def append(self, values: Float[Tensor, "batch kv_heads tokens dim"]) -> None:
        """Add tokens. On an error nothing is added."""
        self.commit(self.prepare(values))

    def read(
        self, dtype: torch.dtype = torch.float32, begin: int | None = None, end: int | None = None
    ) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """Tokens `begin` to `end - 1`, all from `first_token` on if not given, as a query would see them now.

        Raises CacheStateError for tokens that are not held.
        """
        begin = self.first_token if begin is None else begin
        end = self.tokens if end is None else end
        if not self.first_token <= begin <= end <= self.tokens:
            raise CacheStateError(
                f"{self._name}: tokens {begin} to {end} were asked for; held are {self.first_token} to {self.tokens}"
            )
        parts = self._parts(dtype, begin, end)
        low, high, values = next(parts, (begin, begin, None))
        if values is not None and high == end:
            return values  # one piece needs no second array
        seen = torch.empty((self.batch, self.kv_heads, end - begin, self.dim), dtype=dtype, device=self.device)
        while values is not None:
            seen[:, :, low - begin : high - begin] = values
            del values  # before the next is decoded
            low, high, values = next(parts, (end, end, None))
        return seen

    def read_ahead(self, begin: int) -> None:
        """Say that tokens from `begin` on are read next, so that offloaded pages of theirs are fetched meanwhile."""
        if self._coded_pool is not None and self._runs:
            pages = [run.pages_from(begin - self.plan.sinks).ravel() for run in self._runs]
            self._coded_pool.read_ahead(np.concatenate(pages))

    def drop_ahead(self) -> None:
        """Give back memory of what was read ahead and not taken, as after a crop."""
        if self._coded_pool is not None:
            self._coded_pool.drop_ahead()

    def prepare(self, values: Float[Tensor, "batch kv_heads tokens dim"]) -> Change:
        """All of an append that can fail; changes nothing that is read. `commit` then takes its result."""
        try:
            return self._prepare(values)
        except KvassayError as error:
            raise type(error)(f"{self._name}: {error}") from error

    def commit(self, change: Change) -> None:
        """Take what `prepare` made. Nothing here can fail, so several stores change together."""
        assert self._tail is not None, "prepare makes the parts"
        assert self._sinks is not None, "prepare makes the parts"
        self._tail.make_room()
        if change.new_sinks.shape[2]:
            self._sinks.append(_float_streams(change.new_sinks))
        self._drop_coded(change.dropped)
        self._tail.drop_before(change.kept_from)
        if change.encoded:
            run = self._open_run(change.first_encoded)
            for piece in change.encoded:
                run.append(piece.streams)
                self.clipped_values += piece.clipped_values
            self.encoded_values += (change.coded - change.first_encoded) * self._rows * self.kv_heads * self.dim
        elif not self._runs and self._coded_columns:
            # All coded tokens left a sliding layer at once; its block table is there for the next ones.
            self._open_run(change.coded)
        if len(self._runs) == 1:
            self._runs[0].columns_to_keep = self._coded_columns
            self._runs[0].make_room()
        new_tail = change.new_tail.shape[2]
        if new_tail:
            if not self._tail.tokens:
                self._tail.begin_at(change.tokens - self.plan.sinks - new_tail)
            self._tail.append(_float_streams(change.new_tail))
        self.tokens, self.coded, self.dropped = change.tokens, change.coded, change.dropped

    def may_crop_to(self, tokens: int) -> bool:
        """False where a sliding layer no longer holds what the next token would see."""
        window = self.plan.sliding_window
        return window is None or self.first_token <= max(0, tokens - window + 1)

    def crop(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens, and exact copies that were recorded for a crop."""
        if self._tail is None or self._sinks is None:
            return
        if not self.may_crop_to(tokens):
            raise CacheStateError(
                f"{self._name}: a sliding layer that holds tokens from {self.first_token} on cannot be cropped to "
                f"{tokens}; call activate_past_recording() first"
            )
        self.tokens = min(self.tokens, tokens)
        left = max(0, self.tokens - self.plan.sinks)
        self._sinks.drop_from(self.sink_tokens)
        coded = self._coded_after_crop(left)
        for run in self._runs:
            run.drop_from(coded)
        self._runs = [run for run in self._runs if run.tokens]
        self._tail.drop_from(left)
        self.coded = coded
        self.dropped = min(self.dropped, coded)
        self._drop_coded(self._dropped_after(self.tokens, coded))
        self.dropped = self._dropped_after(self.tokens, coded)
        self._tail.drop_before(coded)
        for pool in self.pools:
            pool.trim()

    def select(self, rows: Sequence[int]) -> SideStore:
        """A store of some rows, in this order, that shares their pages until one of the two writes."""
        chosen = copy.copy(self)
        chosen._runs = [run.select(rows) for run in self._runs]
        chosen._tail = None if self._tail is None else self._tail.select(rows)
        chosen._sinks = None if self._sinks is None else self._sinks.select(rows)
        return chosen

    def owner_nbytes(self, skipped_layer: bool) -> dict[Owner, int]:
        """Bytes of the real storages by owner. Pages that only other caches of the same pool use are theirs."""
        return dict(stored_nbytes([self], self.static_nbytes, skipped_layer))

    def paged_parts(self, skipped_layer: bool) -> Iterator[tuple[PagePool, Owner | None, list[PagedRows]]]:
        """(pool, owner of its bytes if all have one, rows) of each part."""
        if self._coded_pool is not None:
            yield self._coded_pool, Owner.SKIPPED_LAYERS if skipped_layer else None, self._runs
        for part, owner in ((self._tail, Owner.WINDOW), (self._sinks, Owner.SINKS)):
            if part is not None:
                yield part.pool, owner, [part]

    def _prepare(self, values: Tensor) -> Change:
        require_finite(values, "entries")
        require_fits(values, self._entry_dtype)
        plan, tokens = self.plan, self.tokens + values.shape[2]
        num_new_sinks = max(0, min(tokens, plan.sinks) - self.tokens)
        new_sinks, new = self._entering(values[:, :, :num_new_sinks]), values[:, :, num_new_sinks:]
        old_end, end = max(0, self.tokens - plan.sinks), max(0, tokens - plan.sinks)
        block = plan.spec.tokens_per_block
        coded = self.coded + max(0, end - self.coded - plan.recent) // block * block
        dropped = self._dropped_after(tokens, coded)
        # Blocks that would leave a sliding layer at once are not encoded.
        first = self.coded + max(0, min(dropped, coded) - self.coded) // block * block
        encoded = self._encode_all(first, coded, new, old_end) if coded > first else ()
        self._check_clipped(encoded)
        kept_from = coded
        # Codes of single tokens without a window are cut as exactly as floats are; all else needs its exact copies.
        if self.recording and plan.recent + block > 1 and not plan.spec.is_exact:
            exact_from = self._tail.first if self._tail is not None and self._tail.tokens else old_end
            kept_from = min(coded, max(exact_from, end - plan.recent - block - RECORDED_TOKENS))
        self._reserve(values.shape[0], values.device, coded, end)
        new_tail = self._entering(new[:, :, max(0, kept_from - old_end) :])
        return Change(tokens, new_sinks, coded, dropped, first, encoded, kept_from, new_tail)

    def _entering(self, values: Tensor) -> Tensor:
        """Values as they wait or are encoded, rounded by parts, so that no second copy of a long text is made."""
        return values.to(getattr(torch, self._entry_dtype))

    def _encode_all(self, first: int, end: int, new: Tensor, new_begin: int) -> tuple[Encoded, ...]:
        """Tokens `first` to `end - 1`, from the tail and from `new`, whose first token has number `new_begin`."""
        block = self.plan.spec.tokens_per_block
        rows = new.shape[0]
        step = encoded_tokens(rows * self.kv_heads * self.dim, block)
        pieces: list[Encoded] = []
        for low in range(first, end, step):
            high = min(low + step, end)
            parts: list[Tensor] = []
            if low < new_begin:
                assert self._tail is not None, "older tokens are held"
                waiting = self._tail.read(low, min(high, new_begin))["codes"]
                parts.append(waiting.flatten(2, 3))
            if high > new_begin:
                parts.append(self._entering(new[:, :, max(0, low - new_begin) : high - new_begin]))
            values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
            if self._key_transform is not None:
                values = self._key_transform.forward(values, self.plan.sinks + low)
            pieces.append(self._quantizer.encode(values, self._calibration))
        return tuple(pieces)

    def _check_clipped(self, encoded: Sequence[Encoded]) -> None:
        clipped = sum(piece.clipped_values for piece in encoded)
        if clipped and self._on_clip == "raise":
            scale = "static" if self.plan.spec.needs_calibration else "unit"
            raise RangeError(
                f"{clipped} values saturate in {self.plan.spec.method} with a {scale} scale; use a "
                "token-head format, or on_clip='count' to keep the saturated values and their count"
            )

    def _dropped_after(self, tokens: int, coded: int) -> int:
        """Coded tokens that no later query sees, in whole blocks."""
        window, block = self.plan.sliding_window, self.plan.spec.tokens_per_block
        if window is None:
            return 0
        held = window + (RECORDED_TOKENS if self.recording else 0)
        return max(self.dropped, min(max(0, tokens - held) // block * block, coded))

    def _coded_after_crop(self, left: int) -> int:
        """End of the coded tokens once `left` tokens after the sinks remain: as few as exact copies allow."""
        assert self._tail is not None, "the caller checks"
        coded = min(self.coded, left)
        if self._tail.tokens and self._tail.first < coded:
            block = self.plan.spec.tokens_per_block
            lowest = max(self._tail.first, max(0, left - self.plan.recent) // block * block)
            for run in self._runs:
                # Codes end where a block ends.
                bound = run.start + -(-(max(lowest, run.first) - run.start) // block) * block
                if bound <= run.end:
                    coded = min(coded, bound)
        return coded

    def _drop_coded(self, dropped: int) -> None:
        for run in self._runs:
            run.drop_before(dropped)
        # One that lost all its tokens goes on where the next ones come, if pages still begin at the same bounds.
        page = self.coded_layout.tokens
        in_step = [run for run in self._runs if run.start % page == 0][:1]
        self._runs = [run for run in self._runs if run.tokens] or in_step

    def _open_run(self, first: int) -> PagedRows:
        """The run that takes a block whose first token is `first`."""
        assert self._coded_pool is not None, "prepare makes the parts"
        if self._runs and not self._runs[-1].tokens:
            if first % self.plan.spec.tokens_per_block == 0:
                self._runs[-1].begin_at(first)
                return self._runs[-1]
            self._runs.clear()
        if self._runs and self._runs[-1].ends_on_block:
            return self._runs[-1]
        page = self.coded_layout.tokens
        in_step = not self._runs and first % self.plan.spec.tokens_per_block == 0
        start = first // page * page if in_step else first
        self._runs.append(PagedRows(self._coded_pool, self._rows, start=start, first=first))
        return self._runs[-1]

    @property
    def _rows(self) -> int:
        assert self._tail is not None, "prepare makes the parts"
        return self._tail.rows

    def _reserve(self, rows: int, device: torch.device, coded: int, end: int) -> None:
        """Take memory before anything changes. What is taken depends on the length alone."""
        if self._tail is None or (not self.tokens and self._tail.rows != rows):
            slabs = None if self._slabs_for is None else self._slabs_for(self.coded_layout, device)
            self._coded_pool = PagePool(self.coded_layout, device, slabs)
            self._tail = PagedRows(PagePool(self.tail_layout, device), rows)
            self._sinks = PagedRows(PagePool(self.sinks_layout, device), rows)
        assert self._coded_pool is not None, "made with the tail"
        coded_pages, tail_pages = coded_capacity(self.plan, coded), tail_capacity(self.plan, end)
        self._coded_pool.ensure(rows * coded_pages)
        self._tail.pool.ensure(rows * tail_pages)
        self._tail.columns_to_keep = tail_pages
        self._coded_columns = coded_pages

    def _parts(self, dtype: torch.dtype, begin: int, end: int) -> Iterator[tuple[int, int, Tensor]]:
        """(first token, end, values) of pieces that follow each other, each small enough to be worked on at once."""
        sinks, coded_end = self.sink_tokens, self.sink_tokens + self.coded
        for low, high in self._pieces(begin, min(end, sinks), 1):
            assert self._sinks is not None, "tokens are held"
            yield low, high, self._sinks.read(low, high)["codes"].flatten(2, 3).to(dtype)
        for run in self._runs:
            low, high = max(begin, sinks + run.first), min(end, sinks + run.end)
            for one, other in self._pieces(low, high, self.coded_layout.tokens, sinks + run.start):
                yield one, other, self._decode(run, one - sinks, other - sinks, dtype)
        for low, high in self._pieces(max(begin, coded_end), end, TAIL_PAGE_TOKENS, sinks):
            assert self._tail is not None, "tokens are held"
            yield low, high, self._tail.read(low - sinks, high - sinks)["codes"].flatten(2, 3).to(dtype)

    def _pieces(self, begin: int, end: int, page: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """`begin` to `end` in pieces that end on page bounds, which are counted from `start`."""
        step = decoded_tokens(max(1, self.batch) * self.kv_heads * self.dim, page)
        while begin < end:
            bound = min(end, start + (begin - start) // page * page + step)
            yield begin, bound
            begin = bound

    def _decode(self, run: PagedRows, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        streams = run.read(begin, end)
        block = self.plan.spec.tokens_per_block
        first = run.start + (begin - run.start) // block * block
        if self._key_transform is None:
            values = decode_as(self._quantizer, streams, dtype, self._calibration)
        else:
            position = self.plan.sinks + first
            values = decode_keys(self._quantizer, streams, dtype, self._calibration, self._key_transform, position)
        return values[:, :, begin - first : end - first]


def _float_streams(values: Tensor) -> Streams:
    """Plain floats as the arrays of their pages: one block a token."""
    return {"codes": values.unsqueeze(3)}
