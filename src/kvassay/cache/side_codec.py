"""SideCodec: codes of one side of one layer out of values, and back, in pieces that bound the working memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from kvassay.cache.key_transform import KeyTransform, decode_keys
from kvassay.cache.own_precision import own_precision
from kvassay.cache.paged_rows import PagedRows
from kvassay.core.kv_format import SidePlan
from kvassay.core.tiles import encoded_tokens
from kvassay.errors import RangeError
from kvassay.formats import Calibration, Encoded, quantizer
from kvassay.formats.base import decode_as
from kvassay.kernels.encode import encode, encodes

OnClip = Literal["raise", "count"]


class SideCodec:
    """Tokens are counted from the end of the sinks."""

    def __init__(
        self, plan: SidePlan, calibration: Calibration | None, key_transform: KeyTransform | None, on_clip: OnClip
    ) -> None:
        self._plan = plan
        self._quantizer = quantizer(plan.spec)
        self.calibration = calibration
        # Plain floats are stored as they are: only codes gain from another form of the key.
        self._key_transform = None if plan.spec.is_exact else key_transform
        self._on_clip: OnClip = on_clip
        self._is_encoded_natively = encodes(plan.spec)
        self.is_native = self._is_encoded_natively and self._key_transform is None
        """True where the compiled module makes the codes of new tokens as they come."""

    def encode(
        self,
        first: int,
        end: int,
        new: Tensor,
        new_begin: int,
        waiting: Callable[[int, int], Tensor],
        kept: torch.dtype,
        require_storable: Callable[[], None],
    ) -> tuple[Encoded, ...]:
        """Codes of tokens `first` to `end - 1`, in pieces.

        `new` `[batch, kv_heads, tokens, dim]` begins with token `new_begin`, and is rounded to `kept`, as tokens are
        that wait; `waiting(low, high)` gives older ones. `require_storable` raises for new values that cannot be
        rounded so: it is called where the compiled module, which checks what it encodes, refuses some. Where
        `is_native` is False, the caller has checked them.
        Raises RangeError for values that saturate, unless they are to be counted.
        """
        pieces: list[Encoded] = []
        for low, high in self._bounds(first, end, new_begin, self._piece_tokens(new)):
            parts: list[Tensor] = []
            if low < new_begin:
                parts.append(waiting(low, min(high, new_begin)))
            if high > new_begin:
                parts.append(new[:, :, max(0, low - new_begin) : high - new_begin])
            values = parts[0] if len(parts) == 1 else torch.cat([part.to(kept) for part in parts], dim=2)
            with own_precision(values.device):
                if self._key_transform is not None:
                    values = self._key_transform.forward(values.to(kept), self._plan.sinks + low)
                pieces += self._encode(values, kept if self._key_transform is None else values.dtype, require_storable)
        self._check_clipped(pieces)
        return tuple(pieces)

    def _bounds(self, first: int, end: int, new_begin: int, step: int) -> Iterator[tuple[int, int]]:
        """Pieces of tokens `first` to `end - 1`: as long as `step`, or all new ones at once for the compiled module,
        which takes no working memory."""
        block = self._plan.spec.tokens_per_block
        low = first
        while low < end:
            high = min(low + step, end)
            if self.is_native:
                # Blocks that begin with a token that waits are put together from two arrays: as few as can be.
                mixed = max(0, -(-(new_begin - low) // block)) * block
                high = min(low + min(step, mixed), end) if mixed else end
            yield low, high
            low = high

    def _piece_tokens(self, values: Tensor) -> int:
        rows, heads, _, dim = values.shape
        return encoded_tokens(rows * heads * dim, self._plan.spec.tokens_per_block)

    def _encode(self, values: Tensor, kept: torch.dtype, require_storable: Callable[[], None]) -> list[Encoded]:
        encoded = encode(self._plan.spec, values, kept) if self._is_encoded_natively else None
        if encoded is not None:
            return [encoded]
        # What the compiled module refuses, the codec encodes, or says what is wrong with it.
        if self.is_native:
            require_storable()
        pieces = values.split(self._piece_tokens(values), dim=2)
        return [self._quantizer.encode(piece.to(kept), self.calibration) for piece in pieces]

    def decode(self, run: PagedRows, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        """Values `[batch, kv_heads, end - begin, dim]` of held tokens of a run."""
        streams = run.read(begin, end)
        block = self._plan.spec.tokens_per_block
        first = run.start + (begin - run.start) // block * block
        with own_precision(run.pool.device):
            if self._key_transform is None:
                values = decode_as(self._quantizer, streams, dtype, self.calibration)
            else:
                position = self._plan.sinks + first
                values = decode_keys(self._quantizer, streams, dtype, self.calibration, self._key_transform, position)
        return values[:, :, begin - first : end - first]

    def _check_clipped(self, encoded: Sequence[Encoded]) -> None:
        clipped = sum(piece.clipped_values for piece in encoded)
        if clipped and self._on_clip == "raise":
            scale = "static" if self._plan.spec.needs_calibration else "unit"
            raise RangeError(
                f"{clipped} values saturate in {self._plan.spec.method} with a {scale} scale; use a "
                "token-head format, or on_clip='count' to keep the saturated values and their count"
            )
