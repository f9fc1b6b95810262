"""QuantizedLayer: keys and values of one layer behind transformers' cache layer interface.

What a query sees. A call with one token appends it and reads the store as it then is, so a token that left the recent
window is read from its codes. A call with several tokens (prefill, or a chunk) reads older tokens as they stand in the
store before the call and the chunk's own tokens exactly, which is what engines do that run a prompt in one piece.

Rows of the batch. Rows that were padded alike stand in one cohort, whose sequences have equal length and share all
arithmetic; a padded row's first tokens are not stored, so its pages, sinks and blocks are those of the row run alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from kvassay.cache.arguments import require_nothing_set, whole_number
from kvassay.cache.attention_path import AttentionChoice, AttentionPath
from kvassay.cache.cohorts import (
    Cohort,
    LayerCalibration,
    StoredHeads,
    read_cohorts,
    require_row_count,
    row_numbers,
    select_rows,
    stored_as_one,
)
from kvassay.cache.kernel_obstacle import layer_obstacle
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.layer_state import LayerState
from kvassay.cache.new_states import check_states, is_plain, plain, shares, without_padding
from kvassay.cache.offload import Offload
from kvassay.cache.packed_view import NewTokens, SeenTokens
from kvassay.cache.side_append import Change
from kvassay.cache.side_codec import OnClip
from kvassay.cache.side_store import SideStore
from kvassay.cache.step_append import LayerStep
from kvassay.cache.store_maker import StoreMaker
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.errors import CacheStateError


class QuantizedLayer(CacheLayerMixin):
    """Keys and values of one layer. `columns` of the batch were appended, padding included."""

    is_croppable = True
    supports_early_init = False

    def __init__(
        self,
        kv_format: KVFormat,
        index: int,
        geometry: LayerGeometry,
        calibration: LayerCalibration,
        on_clip: OnClip,
        key_transform: KeyTransform | None = None,
        left_padding: Sequence[int] | None = None,
        offload: Offload | None = None,
        attention: AttentionChoice = "auto",
        query_heads: int | None = None,
    ) -> None:
        self.columns = 0  # transformers' initialiser sets `keys`, which read it
        self._cohorts: tuple[Cohort, ...] = ()
        self._pending: list[tuple[SideStore, Change]] = []
        self._seen: weakref.ref[SeenTokens] | None = None
        self._step: LayerStep | None = None
        """Where the next single tokens go, if that is known."""
        self._whole: StoredHeads | None = None
        """As `SeenTokens.whole`, found when a token last took the long way; a `_step` changes nothing of it."""
        self.is_whole = True
        """False while an append is written, and for good once that was interrupted."""
        self.interruption: BaseException | None = None
        """What interrupted it where nobody could see it."""
        self.hands_out_views = False
        """True where what reads this layer knows PackedView."""
        self.attention: AttentionChoice = attention
        self.path = AttentionPath.NONE
        """How attention read this layer last."""
        super().__init__()
        self.geometry = geometry
        self.is_sliding = geometry.sliding_window is not None
        self.record_past = self.shows_past = False
        """Whether appends keep what a crop brings back, and whether `keys` shows it: after such an append."""
        self._index = index
        self._groups = head_groups(kv_format, index, geometry)
        self._query_heads = geometry.kv_heads if query_heads is None else query_heads
        self.calibration = calibration
        self.key_transform = key_transform
        self._maker = StoreMaker(
            self._groups, calibration, geometry, kv_format.exact_dtype, index, on_clip, key_transform, offload
        )
        self._left_padding = None if left_padding is None else tuple(left_padding)
        self._offload = offload
        self._next_layer: weakref.ref[QuantizedLayer] | None = None
        self.reset()

    @cached_property
    def kernel_obstacle(self) -> str | None:
        """Why compiled kernels cannot read this layer; None where they can."""
        return layer_obstacle(
            self._groups,
            self.geometry,
            query_heads=self._query_heads,
            is_offloaded=self._offload is not None,
            transforms_keys=self.key_transform is not None,
        )

    def reset(self) -> None:
        """Forget everything, padding of the rows excepted."""
        self.cohorts = ()
        self.columns = 0
        self._dtype = torch.float32
        self.is_initialized = False

    @property
    def cohorts(self) -> tuple[Cohort, ...]:
        """Rows of the batch by how they are stored, all that was appended included."""
        self.settle()
        return self._cohorts

    @cohorts.setter
    def cohorts(self, cohorts: tuple[Cohort, ...]) -> None:
        if self.is_whole:
            self.settle()
        # What is put in the place of all rows ends an interrupted append too.
        self._cohorts, self._pending, self.interruption, self.is_whole = cohorts, [], None, True
        self._step = self._whole = None

    def settle(self) -> None:
        """Finish the last `update`: decode views of the state before it that somebody still holds, then commit."""
        self.require_whole()
        seen, self._seen = (None if self._seen is None else self._seen()), None
        if seen is not None:
            seen.decode_views()
        if self._pending:
            # Whatever ends this early, an interrupt from the keyboard too, leaves the flag.
            self.is_whole = False
            pending, self._pending = self._pending, []
            for store, change in pending:
                store.drop_ahead()  # read for the state before
                store.commit(change)
            self.is_whole = True

    def require_whole(self) -> None:
        """Raise CacheStateError if an append was interrupted while it was written."""
        if not self.is_whole:
            raise CacheStateError(
                f"layer {self._index}: an append was interrupted while it was written, so the layer is not whole; "
                "call reset() and run the tokens again, or go on from a fork or a saved cache"
            ) from self.interruption

    @property
    def keys(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Held keys as the next query would read them, decoded anew each time; None before the first token.

        After an append whose past is recorded, a sliding layer shows all that a crop would bring back.
        """
        return self._held("keys")

    @keys.setter
    def keys(self, value: None) -> None:
        require_nothing_set(value, "keys")

    @property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Held values, as `keys`."""
        return self._held("values")

    @values.setter
    def values(self, value: None) -> None:
        require_nothing_set(value, "values")

    @property
    def batch_size(self) -> int:
        """Rows; −1 before the first token."""
        return sum(len(cohort.rows) for cohort in self.cohorts) or -1

    @property
    def stores(self) -> Iterator[SideStore]:
        for cohort in self.cohorts:
            yield from cohort.stores

    def read_ahead_of(self, layer: QuantizedLayer) -> None:
        """Whenever one side of this layer was read, have that side of `layer` fetched, which is read next."""
        self._next_layer = weakref.ref(layer)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._check_states(key_states, value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Append `[batch, kv_heads, tokens, dim]` and return what this call's queries read."""
        if self._step is not None and self._append_step(key_states, value_states):
            return self._seen_after_one(key_states.dtype, value_states.dtype)
        self._check_states(key_states, value_states)
        key_states, value_states = plain(key_states), plain(value_states)
        num_new = key_states.shape[2]
        padding = self._left_padding or (0,) * key_states.shape[0]
        cohorts = self.cohorts or self._maker.cohorts(padding, recording=self.record_past)
        # All that can fail comes before the first commit, so that an error leaves the whole layer as it was.
        pending = [
            (store, store.prepare(states))
            for cohort in cohorts
            for store, states in shares(cohort, self.columns, key_states, value_states)
        ]
        _, begin = self.get_mask_sizes(num_new)
        old_end, first_call = self.columns, not self.columns
        self.is_whole = False
        self._pending, self._cohorts, self.shows_past = pending, cohorts, self.record_past
        self.columns += num_new
        self.is_initialized, self._dtype = True, key_states.dtype
        self.is_whole = True
        if num_new == 1 or first_call:
            self.settle()
        if num_new == 1:
            self._step = LayerStep.of(self._cohorts)
            self._whole = stored_as_one(self._cohorts)
            return self._seen_after_one(key_states.dtype, value_states.dtype)
        key_states, value_states = (
            without_padding(self._cohorts, each, old_end) for each in (key_states, value_states)
        )
        if first_call:
            return key_states, value_states
        return self._handed_out(
            SeenTokens(self, cohorts, begin, old_end, NewTokens(key_states, value_states)),
            key_states.dtype,
            value_states.dtype,
        )

    def _append_step(self, keys: Tensor, values: Tensor) -> bool:
        """Append one token where that is known to be simple; False, with nothing changed, where it is not."""
        assert self._step is not None, "the caller asks"
        read = None if self._seen is None else self._seen()
        if self._pending or read is not None or not self.is_whole or not (is_plain(keys) and is_plain(values)):
            return False
        appended = False
        # What can raise, as addresses of foreign tensors do, comes before anything is written.
        if (given := self._step.given(keys, values)) is not None:
            self.is_whole = False
            appended = self._step.append(given)
            if appended:
                self.columns += 1
                self._dtype = keys.dtype
            self.is_whole = True
        if not appended or not self._step.left:
            self._step = None
        return appended

    def _seen_after_one(self, keys_dtype: torch.dtype, values_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What the query of a single token reads, which was just appended."""
        window = self.geometry.sliding_window
        begin = 0 if window is None else max(0, self.columns - window)
        seen = SeenTokens(self, self._cohorts, begin, self.columns, None)
        seen.whole = self._whole
        return self._handed_out(seen, keys_dtype, values_dtype)

    def _handed_out(
        self, seen: SeenTokens, keys_dtype: torch.dtype, values_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if not self.hands_out_views:
            self.path = AttentionPath.DECODED
            return seen.decoded("keys", keys_dtype), seen.decoded("values", values_dtype)
        self._seen = weakref.ref(seen)
        return seen.views(self.columns - seen.begin, keys_dtype, values_dtype)

    def get_seq_length(self) -> int:
        return self.columns

    def get_max_length(self) -> int:
        return -1 if self.geometry.sliding_window is None else self.geometry.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what the next `update` returns, and the position of its first token."""
        window = self.geometry.sliding_window
        offset = 0 if window is None else max(0, self.columns - window + 1)
        return self.columns + query_length - offset, offset

    def activate_past_recording(self) -> None:
        """Keep exact copies until the next crop, which then leaves no trace of what it removes."""
        self.record_past, self._step = True, None
        for store in self.stores:
            store.recording = True

    def require_croppable(self, columns: int) -> None:
        """Raise CacheStateError where `crop` to so many columns cannot be done."""
        for cohort in self.cohorts:
            for store in cohort.stores:
                if not store.may_crop_to(cohort.tokens(columns)):
                    raise CacheStateError(
                        f"layer {self._index} sees {self.geometry.sliding_window} tokens and holds them from "
                        f"{store.first_token} on, so it cannot be cropped to {columns}; call "
                        "activate_past_recording() before tokens that may be taken back"
                    )

    def crop(self, tokens_to_remove: int) -> int:
        """Remove the last `-tokens_to_remove` tokens; returns how many were removed."""
        removed = min(-tokens_to_remove, self.columns)
        self.require_croppable(self.columns - removed)
        self.columns -= removed
        self._step, self.shows_past = None, False
        for cohort in self.cohorts:
            for store in cohort.stores:
                store.crop(cohort.tokens(self.columns))
        return removed

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows that `indices` names (numbers, or one boolean a row), in its order; a row may come twice."""
        if self.cohorts:
            self._keep_rows(row_numbers(indices, self.batch_size))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times; the copies share its pages until they differ."""
        count = whole_number(repeats, "batch_repeat_interleave", least=1)
        if self.cohorts:
            require_row_count(count * self.batch_size)
            self._keep_rows([row for row in range(self.batch_size) for _ in range(count)])

    def take_rows(self, other: QuantizedLayer) -> None:
        """Add the rows of `other` behind these. The shorter of the two is padded on the left."""
        self.state = self.state.joined(other.state)

    def trim_padding(self, columns: int) -> None:
        """Forget leading columns that are padding in every row."""
        self.state = self.state.trimmed(columns)

    def share_with(self, other: QuantizedLayer) -> None:
        """Give `other`, an empty layer of the same kind, these tokens; pages are shared until one of the two writes."""
        cohorts = select_rows(self.cohorts, range(self.batch_size)) if self.cohorts else ()
        other.state = self.state._replace(cohorts=cohorts)
        other.shows_past = self.shows_past

    @property
    def state(self) -> LayerState:
        """What the layer holds, itself and not a copy."""
        return LayerState(self.columns, self._dtype, self.record_past, self._left_padding, self.cohorts)

    @state.setter
    def state(self, state: LayerState) -> None:
        self.columns, self._dtype, self.record_past, self._left_padding, self.cohorts = state
        self.is_initialized = bool(state.cohorts)

    def empty_cohort(self, rows: Sequence[int], padding: int) -> Cohort:
        """Rows without tokens, with stores as this layer makes them."""
        return self._maker.cohort(rows, padding, recording=self.record_past)

    def offload(self) -> None:
        raise CacheStateError(
            "QuantizedCache does not move between devices layer by layer; it keeps packed codes where they are made"
        )

    def _keep_rows(self, rows: Sequence[int]) -> None:
        """Without rows there is no token: the next append begins a batch."""
        if rows:
            self.cohorts = select_rows(self.cohorts, rows)
        else:
            self.reset()

    def _held(self, side: str) -> Tensor | None:
        if not self._cohorts:
            return None
        _, begin = self.get_mask_sizes(0)
        if self.shows_past:
            # As transformers' sliding layer does.
            begin = min(begin, max(one.padding + store.first_token for one in self.cohorts for store in one.stores))
        return self.read_columns(self.cohorts, side, self._dtype, begin, self.columns)

    def _check_states(self, key_states: Tensor, value_states: Tensor) -> None:
        padded = None if self._left_padding is None else len(self._left_padding)
        rows = self.batch_size if self.cohorts else None
        check_states(key_states, value_states, self.geometry, rows, padded, f"layer {self._index}")

    def read_columns(self, cohorts: tuple[Cohort, ...], side: str, dtype: torch.dtype, begin: int, end: int) -> Tensor:
        """Columns `begin` to `end - 1` of all rows; padding is zero."""
        seen = read_cohorts(cohorts, side, self.geometry, dtype, begin, end)
        self.was_read(cohorts, side)
        return seen

    def was_read(self, cohorts: tuple[Cohort, ...], side: str) -> None:
        """Offloaded pages of this side are no longer needed, and those of the next layer soon."""
        following = None if self._next_layer is None else self._next_layer()
        if following is not None:
            for group in (group for cohort in cohorts for group in cohort.stored_heads):
                getattr(group, side).drop_ahead()
            following._read_ahead(side)

    def _read_ahead(self, side: str) -> None:
        _, offset = self.get_mask_sizes(1)
        # Not `cohorts`: this layer may be about to decode views of the state before its own last append.
        for cohort in self._cohorts:
            for group in cohort.stored_heads:
                getattr(group, side).read_ahead(max(0, offset - cohort.padding))
