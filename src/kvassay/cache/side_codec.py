"""SideCodec: codes of one side of one layer out of values, and back, in pieces that bound the working memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        self.is_native = encodes(plan.spec) and self._key_transform is None
        """True where the compiled module makes the codes."""

    def encode(
        self,
        first: int,
        end: int,
        new: Tensor,
        new_begin: int,
        waiting: Callable[[int, int], Tensor],
        entering: Callable[[Tensor], Tensor],
    ) -> tuple[Encoded, ...]:
        """Codes of tokens `first` to `end - 1`, in pieces.

        `new` `[batch, kv_heads, tokens, dim]` begins with token `new_begin`, and `entering` rounds it as tokens that
        wait are rounded; `waiting(low, high)` gives older ones.
        Raises RangeError for values that saturate, unless they are to be counted.
        """
        block = self._plan.spec.tokens_per_block
        rows, heads, _, dim = new.shape
        step = encoded_tokens(rows * heads * dim, block)
        pieces: list[Encoded] = []
        for low in range(first, end, step):
            high = min(low + step, end)
            parts: list[Tensor] = []
            if low < new_begin:
                parts.append(waiting(low, min(high, new_begin)))
            if high > new_begin:
                parts.append(entering(new[:, :, max(0, low - new_begin) : high - new_begin]))
            values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
            with own_precision(values.device):
                if self._key_transform is not None:
                    values = self._key_transform.forward(values, self._plan.sinks + low)
                pieces.append(self._encode(values))
        self._check_clipped(pieces)
        return tuple(pieces)

    def _encode(self, values: Tensor) -> Encoded:
        encoded = encode(self._plan.spec, values) if self.is_native else None
        # What the compiled module refuses, the codec encodes, or says what is wrong with it.
        return self._quantizer.encode(values, self.calibration) if encoded is None else encoded

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
