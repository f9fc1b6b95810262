"""SideStore: the stored keys or values of one layer."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kvassay.cache.paged_array import PagedArray
from kvassay.core.geometry import Owner
from kvassay.core.kv_format import SidePlan
from kvassay.core.layout import static_nbytes, streams
from kvassay.core.ledger import page_tokens
from kvassay.errors import KvassayError, RangeError
from kvassay.formats import Calibration, Encoded, quantizer
from kvassay.formats.base import decode_as, require_finite
from kvassay.formats.floating import round_to

OnClip = Literal["raise", "count"]


class Change(NamedTuple):
    """An append that is worked out and not yet made."""

    tokens: int
    """Tokens of the store after it."""
    new_sinks: Tensor
    waiting: Tensor
    """The old tail and what came after the sinks; the first `committed` tokens of it are encoded."""
    committed: int
    encoded: Encoded | None


class SideStore:
    """Sinks, committed codes and full-precision tail of one side of one layer, in that order of tokens.

    Every value is first rounded to the exact dtype, whether it will wait in the tail or be encoded at once, so codes
    never depend on how the tokens were chunked. A committed code never changes.
    """

    def __init__(
        self,
        plan: SidePlan,
        kv_heads: int,
        dim: int,
        exact_dtype: str,
        *,
        calibration: Calibration | None = None,
        on_clip: OnClip = "raise",
        name: str = "values",
    ) -> None:
        self.plan = plan
        self.tokens = 0
        """Tokens appended so far, those that a sliding window dropped included."""
        self.clipped_values = 0
        self.encoded_values = 0
        self._quantizer = quantizer(plan.spec)
        self._calibration = calibration
        self._on_clip = on_clip
        self._name = name
        self._entry_dtype = plan.spec.code_dtype if plan.spec.is_exact else exact_dtype
        block = plan.spec.tokens_per_block
        page_blocks = page_tokens(plan.spec) // block
        self._streams = {s.name: PagedArray(page_blocks) for s in streams(plan.spec, kv_heads, dim)}
        self._owners = {s.name: s.owner for s in streams(plan.spec, kv_heads, dim)}
        self._static_nbytes = static_nbytes(plan.spec, kv_heads, dim)
        self._sinks: Tensor | None = None
        self._tail: Tensor | None = None

    @property
    def batch(self) -> int:
        """Rows; 0 while the store is empty."""
        return 0 if self._tail is None else self._tail.shape[0]

    @property
    def first_token(self) -> int:
        """Index of the oldest token that `read` returns; above 0 once a sliding window dropped some."""
        return self.plan.dropped_tokens(self.tokens)

    @property
    def stored_tokens(self) -> int:
        """Tokens that are read back from codes (not from sinks or tail)."""
        return self.plan.committed_tokens(self.tokens) - self.plan.dropped_tokens(self.tokens)

    def append(self, values: Float[Tensor, "batch kv_heads tokens dim"]) -> None:
        """Add tokens. On an error nothing is added."""
        self.commit(self.prepare(values))

    def read(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """All tokens from `first_token` on, as a query would see them now."""
        assert self._tail is not None, "read comes after append"
        assert self._sinks is not None, "append sets sinks and tail"
        decoded = self._decode(dtype)
        parts = [self._sinks.to(dtype), *([] if decoded is None else [decoded]), self._tail.to(dtype)]
        return torch.cat([part for part in parts if part.shape[2]], dim=2)

    def owner_nbytes(self, skipped_layer: bool) -> dict[Owner, int]:
        """Bytes of the real storages by owner."""
        nbytes: Counter[Owner] = Counter(self._static_nbytes)
        for part, owner in ((self._sinks, Owner.SINKS), (self._tail, Owner.WINDOW)):
            nbytes[owner] += 0 if part is None else part.untyped_storage().nbytes()
        for name, array in self._streams.items():
            filled = array.num_blocks * array.block_nbytes
            nbytes[Owner.SKIPPED_LAYERS if skipped_layer else self._owners[name]] += filled
            nbytes[Owner.PADDING] += array.nbytes - filled
        return {owner: count for owner, count in nbytes.items() if count}

    def prepare(self, values: Float[Tensor, "batch kv_heads tokens dim"]) -> Change:
        """All of an append that can fail; changes nothing. `commit` then takes its result."""
        try:
            return self._prepare(values)
        except KvassayError as error:
            raise type(error)(f"{self._name}: {error}") from error

    def _prepare(self, values: Tensor) -> Change:
        require_finite(values, "entries")
        entering = round_to(values, self._entry_dtype)
        tokens = self.tokens + values.shape[2]
        num_new_sinks = max(0, min(tokens, self.plan.sinks) - self.tokens)
        new_sinks, waiting = entering[:, :, :num_new_sinks], entering[:, :, num_new_sinks:]
        if self._tail is not None:
            waiting = torch.cat((self._tail, waiting), dim=2)
        count = self.plan.committed_tokens(tokens) - self.plan.committed_tokens(self.tokens)
        encoded = self._quantizer.encode(waiting[:, :, :count], self._calibration) if count else None
        if encoded is not None and encoded.clipped_values and self._on_clip == "raise":
            scale = "static" if self.plan.spec.is_static else "unit"
            raise RangeError(
                f"{encoded.clipped_values} values saturate in {self.plan.spec.method} with a {scale} scale; use a "
                "token-head format, or on_clip='count' to keep the saturated values and their count"
            )
        return Change(tokens, new_sinks, waiting, count, encoded)

    def commit(self, change: Change) -> None:
        """Take what `prepare` made. Nothing here can fail, so several stores change together."""
        num_dropped = self.plan.dropped_tokens(change.tokens) - self.plan.dropped_tokens(self.tokens)
        if change.encoded is not None:
            for name, blocks in change.encoded.streams.items():
                self._streams[name].append(blocks)
            self.clipped_values += change.encoded.clipped_values
            self.encoded_values += change.waiting[:, :, : change.committed].numel()
        for array in self._streams.values():
            array.drop_first(num_dropped // self.plan.spec.tokens_per_block)
        # Clones, so that a kept slice does not hold the whole chunk's storage.
        self._tail = change.waiting[:, :, change.committed :].clone()
        if self._sinks is None:
            self._sinks = change.new_sinks.clone()
        elif change.new_sinks.shape[2]:
            self._sinks = torch.cat((self._sinks, change.new_sinks), dim=2)
        self.tokens = change.tokens

    def _decode(self, dtype: torch.dtype) -> Tensor | None:
        blocks = {name: array.blocks for name, array in self._streams.items() if array.num_blocks}
        if not blocks:
            return None
        streams = {name: array for name, array in blocks.items() if array is not None}
        return decode_as(self._quantizer, streams, dtype, self._calibration)
