"""How uneven the channels of keys and values are on a text, and how much attention the first tokens take."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvassay.core.format_names import parse_format
from kvassay.core.kv_format import SIDES, SidePlan
from kvassay.core.spec import exact_spec
from kvassay.engines.transformers.decode_attention import attention_parts
from kvassay.engines.transformers.decode_scorer import DecodeScorer, LayerAttention
from kvassay.engines.transformers.decode_view import decode_view

SINK_TOKENS = 4
_QUERIES = 64
"""The last queries of the text are measured: they see the longest history."""


class LayerChannels(NamedTuple):
    """One layer on one text."""

    key_max_abs: float
    key_outlier_ratio: float
    """Absmax of the largest channel over the median channel's, in the KV head where it is most."""
    value_max_abs: float
    value_outlier_ratio: float
    sink_share: float
    """Mean attention weight of the first `SINK_TOKENS` tokens, over heads and the last queries."""


@torch.inference_mode()
def layer_channels(scorer: DecodeScorer, token_ids: Int[Tensor, " tokens"]) -> list[LayerChannels]:
    """Figures of each layer, from the keys (after RoPE) and values that a full-precision cache holds."""
    reference = scorer.reference(token_ids)
    shares: dict[int, float] = {}

    def observe(observed: LayerAttention) -> None:
        shares[observed.layer] = _sink_share(observed, scorer.geometry.layers[observed.layer].sliding_window)

    before = max(1, len(token_ids) - _QUERIES)
    scorer.candidate(token_ids, before, reference, parse_format("f32"), observer=observe)
    return [
        LayerChannels(
            key_max_abs=float(keys.abs().max()),
            key_outlier_ratio=outlier_ratio(keys),
            value_max_abs=float(values.abs().max()),
            value_outlier_ratio=outlier_ratio(values),
            sink_share=shares[layer],
        )
        for layer, (keys, values) in enumerate(zip(reference.keys, reference.values, strict=True))
    ]


def outlier_ratio(values: Float[Tensor, "batch kv_heads tokens dim"]) -> float:
    """Absmax of the largest channel over the median channel's, in the KV head where this is largest."""
    largest = values.abs().amax(dim=(0, 2))
    return float((largest.amax(-1) / largest.median(dim=-1).values.clamp_min(1e-30)).max())


def _sink_share(observed: LayerAttention, window: int | None) -> float:
    keys, values = (
        decode_view(states, SidePlan(side, exact_spec("float32"), 0, 0, window), "float32", None, "entries")
        for side, states in zip(SIDES, (observed.keys, observed.values), strict=True)
    )
    first = observed.keys.shape[2] - observed.queries.shape[2]
    weights = attention_parts(observed.queries, keys, values, first, observed.rule).weights
    return float(weights[..., :SINK_TOKENS].sum(-1).mean())
