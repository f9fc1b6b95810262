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
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.cache.coded_runs import CodedRuns
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.page_pool import PagePool
from kvassay.cache.paged_rows import PagedRows
from kvassay.cache.side_append import Change, reserve
from kvassay.cache.side_codec import OnClip, SideCodec
from kvassay.cache.side_parts import PagePart, SideParts, float_streams, tail_pool
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
from kvassay.errors import CacheStateError, KvassayError
from kvassay.formats import Calibration
from kvassay.formats.base import require_finite
from kvassay.formats.floating import require_fits
from kvassay.kernels.encode import fit
from kvassay.kernels.tile_formats import TileSide, tile_side

SlabsFor = Callable[[PageLayout, torch.device], SlabStorage]
"""Makes the storage of a pool of coded pages."""

RECORDED_TOKENS = 256
"""While recording, a crop of up to this many tokens finds everything as it was."""


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
        self.exact_dtype: FloatDtype = exact_dtype
        self._codec = SideCodec(plan, calibration, key_transform, on_clip)
        self._name = name
        self._slabs_for = slabs_for
        self.entry_dtype: str = plan.spec.code_dtype if plan.spec.is_exact else exact_dtype
        self.static_nbytes = static_nbytes(plan.spec, kv_heads, dim)
        self.coded_layout: PageLayout = page_layout(plan.spec, kv_heads, dim, plan.side)
        self.tail_layout: PageLayout = exact_page_layout(exact_dtype, kv_heads, dim, plan.side, TAIL_PAGE_TOKENS)
        self.sinks_layout: PageLayout = exact_page_layout(exact_dtype, kv_heads, dim, plan.side, max(1, plan.sinks))
        self._parts: SideParts | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What kernels need is made anew: the compiled module's objects are not copied.
        return {name: value for name, value in self.__dict__.items() if name != "tile_side"}

    @property
    def batch(self) -> int:
        """Rows; 0 while the store is empty."""
        return 0 if self._parts is None or not self.tokens else self._parts.tail.rows

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
        return torch.device("cpu") if self._parts is None else self._parts.tail.pool.device

    @property
    def pools(self) -> tuple[PagePool, ...]:
        """Real storages; a fork shares them."""
        return () if self._parts is None else self._parts.pools

    @property
    def parts(self) -> SideParts | None:
        """The pages themselves, not a copy; None while no token is held."""
        return self._parts if self.tokens else None

    @parts.setter
    def parts(self, parts: SideParts | None) -> None:
        """Take pages as they are; the caller sets the counts of tokens that belong to them."""
        self._parts = parts

    @property
    def coded_pages(self) -> tuple[PagedRows, ...]:
        """The coded tokens: one run, and more only after blocks were cut."""
        return () if self._parts is None else self._parts.coded.held

    @property
    def codes_single_tokens(self) -> bool:
        """True where the compiled module can code a token by itself."""
        spec = self.plan.spec
        return spec.tokens_per_block == 1 and (spec.is_exact or self._codec.is_native)

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
        if begin == end:
            return torch.empty((self.batch, self.kv_heads, 0, self.dim), dtype=dtype, device=self.device)
        sinks = self.sink_tokens
        pieces = self._made_parts.pieces(self._codec, sinks, sinks + self.coded, begin, end, dtype)
        low, high, values = next(pieces)
        if high == end:
            return values  # one piece needs no second array
        seen = torch.empty((self.batch, self.kv_heads, end - begin, self.dim), dtype=dtype, device=self.device)
        while True:
            seen[:, :, low - begin : high - begin] = values
            del values  # before the next is decoded
            if high == end:
                return seen
            low, high, values = next(pieces)

    def page_parts(self, begin: int, end: int) -> Iterator[PagePart]:
        """Pages of tokens `begin` to `end - 1`, in their order; tokens count from the first sink."""
        sinks = self.sink_tokens
        return self._made_parts.page_parts(sinks, sinks + self.coded, begin, end)

    @cached_property
    def tile_side(self) -> TileSide:
        """What kernels need to read this store's pages; only where nothing stands in their way (`kernel_obstacle`)."""
        layouts = (self.coded_layout, self.tail_layout, self.sinks_layout)
        return tile_side(self.plan, layouts, self.exact_dtype, self.kv_heads, self.dim, self._codec.calibration)

    def read_ahead(self, begin: int) -> None:
        """Say that tokens from `begin` on are read next, so that offloaded pages of theirs are fetched meanwhile."""
        if self._parts is not None:
            self._parts.coded.read_ahead(begin - self.plan.sinks)

    def drop_ahead(self) -> None:
        """Give back memory of what was read ahead and not taken, as after a crop."""
        if self._parts is not None:
            self._parts.coded.pool.drop_ahead()

    def prepare(self, values: Float[Tensor, "batch kv_heads tokens dim"]) -> Change:
        """All of an append that can fail; changes nothing that is read. `commit` then takes its result."""
        try:
            return self._prepare(values)
        except KvassayError as error:
            raise type(error)(f"{self._name}: {error}") from error

    def commit(self, change: Change) -> None:
        """Take what `prepare` made, and the pages that it holds for it, so that several stores change together."""
        coded, tail, sinks = self._made_parts
        tail.columns_to_keep = tail_capacity(self.plan, max(0, change.tokens - self.plan.sinks))
        tail.pool.keep_numbers(tail.rows * tail.columns_to_keep)
        tail.make_room()
        change.reserved.release()
        if change.new_sinks.shape[2]:
            sinks.append(float_streams(change.new_sinks))
        coded.drop_before(change.dropped)
        tail.drop_before(change.kept_from)
        first = change.first_encoded if change.encoded else change.coded
        coded.append(first, change.encoded, coded_capacity(self.plan, change.coded))
        self.clipped_values += sum(piece.clipped_values for piece in change.encoded)
        if change.encoded:
            self.encoded_values += (change.coded - first) * tail.rows * self.kv_heads * self.dim
        new_tail = change.new_tail.shape[2]
        if new_tail:
            if not tail.tokens:
                tail.begin_at(change.tokens - self.plan.sinks - new_tail)
            tail.append(float_streams(change.new_tail))
        # Only now, so that pages which left at one end were there for the other.
        tail.pool.trim()
        self.tokens, self.coded, self.dropped = change.tokens, change.coded, change.dropped

    def may_crop_to(self, tokens: int) -> bool:
        """False where a sliding layer no longer holds what the next token would see."""
        window = self.plan.sliding_window
        return window is None or self.first_token <= max(0, tokens - window + 1)

    def crop(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens, and exact copies that were recorded for a crop."""
        if self._parts is None:
            return
        if not self.may_crop_to(tokens):
            raise CacheStateError(
                f"{self._name}: a sliding layer that holds tokens from {self.first_token} on cannot be cropped to "
                f"{tokens}; call activate_past_recording() first"
            )
        coded, tail, sinks = self._parts
        self.tokens = min(self.tokens, tokens)
        left = max(0, self.tokens - self.plan.sinks)
        sinks.drop_from(self.sink_tokens)
        self.coded = self._parts.coded_after_crop(self.plan, self.coded, left)
        coded.drop_from(self.coded)
        tail.drop_from(left)
        self.dropped = min(self.dropped, self.coded)
        self.dropped = self.dropped_after(self.tokens, self.coded)
        coded.drop_before(self.dropped)
        tail.drop_before(self.coded)
        for pool in self.pools:
            pool.trim()

    def select(self, rows: Sequence[int]) -> SideStore:
        """A store of some rows, in this order, that shares their pages until one of the two writes."""
        chosen = copy.copy(self)
        if "tile_side" in self.__dict__:
            chosen.__dict__["tile_side"] = self.tile_side
        chosen._parts = None if self._parts is None else self._parts.select(rows)
        return chosen

    def owner_nbytes(self, skipped_layer: bool) -> dict[Owner, int]:
        """Bytes of the real storages by owner. Pages that only other caches of the same pool use are theirs."""
        return dict(stored_nbytes([self], self.static_nbytes, skipped_layer))

    def paged_parts(self, skipped_layer: bool) -> Iterator[tuple[PagePool, Owner | None, list[PagedRows]]]:
        """(pool, owner of its bytes if all have one, rows) of each part."""
        if self._parts is not None:
            coded, tail, sinks = self._parts
            yield coded.pool, Owner.SKIPPED_LAYERS if skipped_layer else None, list(coded.all)
            yield tail.pool, Owner.WINDOW, [tail]
            yield sinks.pool, Owner.SINKS, [sinks]

    def _prepare(self, values: Tensor) -> Change:
        plan, tokens = self.plan, self.tokens + values.shape[2]
        num_new_sinks = max(0, min(tokens, plan.sinks) - self.tokens)
        new_sinks, new = self._entering(values[:, :, :num_new_sinks]), values[:, :, num_new_sinks:]
        old_end, end = max(0, self.tokens - plan.sinks), max(0, tokens - plan.sinks)
        block, kept = plan.spec.tokens_per_block, getattr(torch, self.entry_dtype)
        coded = self.coded + max(0, end - self.coded - plan.recent) // block * block
        dropped = self.dropped_after(tokens, coded)
        # Blocks that would leave a sliding layer at once are not encoded.
        first = self.coded + max(0, min(dropped, coded) - self.coded) // block * block
        parts = self._parts_for(values.shape[0], values.device)
        # The compiled module checks what it encodes as it reads it.
        encoding = range(num_new_sinks + max(0, first - old_end), num_new_sinks + max(0, coded - old_end))
        encoding = encoding if self._codec.is_native else range(0)
        if not all(fit(part, kept) for part in (values[:, :, : encoding.start], values[:, :, encoding.stop :])):
            self._require_storable(values)
        encoded = self._codec.encode(
            first, coded, new, old_end, parts.waiting, kept, lambda: self._require_storable(values)
        )
        kept_from = coded
        # Codes of single tokens without a window are cut as exactly as floats are; all else needs its exact copies.
        if self.recording and plan.recent + block > 1 and not plan.spec.is_exact:
            exact_from = parts.tail.first if parts.tail.tokens else old_end
            kept_from = min(coded, max(exact_from, end - plan.recent - block - RECORDED_TOKENS))
        new_tail = self._entering(new[:, :, max(0, kept_from - old_end) :])
        # Pages that a sliding layer leaves are used again, and what it keeps of them depends on the length alone.
        parts.coded.pool.ensure(parts.tail.rows * coded_capacity(plan, coded) if plan.sliding_window else 0)
        waiting = range(end - new_tail.shape[2], end)
        reserved = reserve(parts, min(tokens, plan.sinks), dropped, range(first, coded), kept_from, waiting)
        return Change(tokens, new_sinks, coded, dropped, first, encoded, kept_from, new_tail, reserved)

    def _require_storable(self, values: Tensor) -> None:
        require_finite(values, "entries")
        require_fits(values, self.entry_dtype)

    def _entering(self, values: Tensor) -> Tensor:
        """Values as they wait or are encoded, rounded by parts, so that no second copy of a long text is made."""
        return values.to(getattr(torch, self.entry_dtype))

    def dropped_after(self, tokens: int, coded: int) -> int:
        """Coded tokens that no later query sees, in whole blocks."""
        window, block = self.plan.sliding_window, self.plan.spec.tokens_per_block
        if window is None:
            return 0
        held = window + (RECORDED_TOKENS if self.recording else 0)
        return max(self.dropped, min(max(0, tokens - held) // block * block, coded))

    @property
    def _made_parts(self) -> SideParts:
        assert self._parts is not None, "the first append makes them"
        return self._parts

    def _parts_for(self, rows: int, device: torch.device) -> SideParts:
        """The parts, made anew where nothing is held of so many rows."""
        if self._parts is None or (not self.tokens and self._parts.tail.rows != rows):
            slabs = None if self._slabs_for is None else self._slabs_for(self.coded_layout, device)
            self._parts = SideParts(
                CodedRuns(PagePool(self.coded_layout, device, slabs), rows),
                PagedRows(tail_pool(self.tail_layout, device), rows),
                PagedRows(PagePool(self.sinks_layout, device), rows),
            )
        return self._parts
