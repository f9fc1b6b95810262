"""What each decode query sees of a quantized side: stored codes for committed tokens, exact values for the rest."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvassay.cache.key_transform import KeyTransform, decode_keys
from kvassay.core.kv_format import SidePlan, committed_tokens
from kvassay.errors import KvassayError
from kvassay.formats import Calibration, quantizer
from kvassay.formats.base import decode_as, require_finite
from kvassay.formats.calibration import require_calibration
from kvassay.formats.floating import round_to


class EncodeCounts(NamedTuple):
    """How many values were encoded and how many of them saturated."""

    encoded_values: int
    clipped_values: int


class DecodeView(NamedTuple):
    """One side of one layer as T decode queries see it, without a copy a query.

    Token j is read from its codes by query i exactly if first_stored <= j < boundary[i].
    """

    exact: Float[Tensor, "batch kv_heads tokens dim"]
    stored: Float[Tensor, "batch kv_heads tokens dim"]
    """Decoded codes; equal to `exact` where a token is never committed."""
    first_stored: int
    boundaries: tuple[int, ...]
    """For query i (absolute position): end of the stored tokens it sees. Never falls."""
    counts: EncodeCounts

    def mixed(self, first_query: int, last_query: int) -> tuple[int, int]:
        """Tokens that the first of these queries sees exactly and the last one as codes."""
        return self.boundaries[first_query], self.boundaries[last_query]

    def reads_stored(self, first_query: int, last_query: int) -> Bool[Tensor, "queries mixed_tokens"]:
        """Which of the mixed tokens each query reads from codes."""
        begin, end = self.mixed(first_query, last_query)
        ends = torch.tensor(self.boundaries[first_query : last_query + 1], device=self.exact.device)
        return torch.arange(begin, end, device=self.exact.device) < ends[:, None]

    def settled(self, first_query: int, end: int) -> Float[Tensor, "batch kv_heads tokens dim"]:
        """Tokens before `end` as the first query sees them."""
        begin, boundary = self.first_stored, min(self.boundaries[first_query], end)
        if boundary <= begin:
            return self.exact[:, :, :end]
        return torch.cat(
            (self.exact[:, :, :begin], self.stored[:, :, begin:boundary], self.exact[:, :, boundary:end]),
            dim=2,
        )


def decode_view(
    values: Float[Tensor, "batch kv_heads tokens dim"],
    plan: SidePlan,
    exact_dtype: str,
    calibration: Calibration | None,
    name: str,
    key_transform: KeyTransform | None = None,
) -> DecodeView:
    """Encode and decode once what a cache of this plan would have committed by the end of `values`.

    The first token of `values` stands at position 0.

    Since committed codes never change, the codes after the last token hold the codes that every earlier query saw.
    """
    tokens = values.shape[2]
    begin = min(plan.sinks, tokens)
    boundaries = _boundaries(plan.sinks, plan.recent, plan.spec.tokens_per_block, tokens)
    end = boundaries[-1]
    counts = EncodeCounts(0, 0)
    try:
        require_finite(values, "entries")
        exact = round_to(values, plan.spec.code_dtype if plan.spec.is_exact else exact_dtype)
        stored = exact.to(values.dtype)
        if end > begin and not plan.spec.is_exact:
            codec = quantizer(plan.spec)
            if plan.spec.needs_calibration and calibration is not None:
                heads, dim, given = values.shape[1], values.shape[3], calibration
                require_calibration(plan.spec, heads, dim, given.parameters, given.source, "the given calibration")
            entering = exact[:, :, begin:end]
            stored = stored.clone()
            if key_transform is None:
                encoded = codec.encode(entering, calibration)
                decoded = decode_as(codec, encoded.streams, values.dtype, calibration)
            else:
                encoded = codec.encode(key_transform.forward(entering, begin), calibration)
                decoded = decode_keys(codec, encoded.streams, values.dtype, calibration, key_transform, begin)
            stored[:, :, begin:end] = decoded
            counts = EncodeCounts(entering.numel(), encoded.clipped_values)
    except KvassayError as error:
        raise type(error)(f"{name}: {error}") from error
    return DecodeView(exact.to(values.dtype), stored, begin, boundaries, counts)


@lru_cache(maxsize=32)
def _boundaries(sinks: int, recent: int, block: int, tokens: int) -> tuple[int, ...]:
    """End of the stored tokens at each step. The same for every layer of a pass, so it is kept."""
    begin = min(sinks, tokens)
    return tuple(begin + committed_tokens(position + 1, sinks, recent, block) for position in range(tokens))
