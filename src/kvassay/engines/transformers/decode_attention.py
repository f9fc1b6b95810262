"""Attention of many decode queries at once, each over the cache exactly as it stood at that query's step.

For a chunk of queries most tokens are either committed for all of them or exact for all of them; only a band as wide
as the chunk differs. Scores are computed once over the settled tokens and once more for the band, and selected by
query. That costs one ordinary attention plus a band, and no `[tokens, 2 tokens]` mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvassay.engines.transformers.decode_view import DecodeView

QUERY_CHUNK = 128


class AttentionRule(NamedTuple):
    """What a layer does to its scores."""

    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sink_logits: Float[Tensor, " query_heads"] | None = None


class AttentionParts(NamedTuple):
    """Attention of some queries, stage by stage."""

    scores: Float[Tensor, "batch kv_heads repeats queries tokens"]
    """Scaled logits before soft cap and mask."""
    weights: Float[Tensor, "batch kv_heads repeats queries tokens"]
    output: Float[Tensor, "batch query_heads queries value_dim"]


def decode_attention(
    queries: Float[Tensor, "batch query_heads queries head_dim"],
    keys: DecodeView,
    values: DecodeView,
    first_position: int,
    rule: AttentionRule,
) -> Float[Tensor, "batch query_heads queries value_dim"]:
    """Causal attention of queries at positions `first_position`, `first_position + 1`, ..."""
    pieces = []
    for start in range(0, queries.shape[2], QUERY_CHUNK):
        chunk = queries[:, :, start : start + QUERY_CHUNK]
        pieces.append(attention_parts(chunk, keys, values, first_position + start, rule).output)
    return torch.cat(pieces, dim=2)


def attention_parts(
    queries: Float[Tensor, "batch query_heads queries head_dim"],
    keys: DecodeView,
    values: DecodeView,
    first: int,
    rule: AttentionRule,
) -> AttentionParts:
    """Attention of one chunk of queries, which begins at position `first`, over tokens up to its last query."""
    scores, weights = attention_weights(queries, keys, first, rule)
    return AttentionParts(scores, weights, attention_output(weights, values, first))


def attention_weights(
    queries: Float[Tensor, "batch query_heads queries head_dim"], keys: DecodeView, first: int, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """Scores and softmax weights of a chunk, `[batch, kv_heads, repeats, queries, tokens]` each."""
    batch, _, num_queries, head_dim = queries.shape
    kv_heads = keys.exact.shape[1]
    last = first + num_queries - 1
    # Query heads that share a KV head stand together: [batch, kv_heads, repeats * queries, head_dim].
    grouped = queries.reshape(batch, kv_heads, -1, head_dim) * rule.scaling
    scores = grouped @ keys.settled(first, last + 1).transpose(2, 3)
    scores = scores.unflatten(2, (-1, num_queries))
    begin, end = keys.mixed(first, last)
    if end > begin:
        stored_scores = grouped @ keys.stored[:, :, begin:end].transpose(2, 3)
        band = torch.where(
            keys.reads_stored(first, last),
            stored_scores.unflatten(2, (-1, num_queries)),
            scores[..., begin:end],
        )
        scores[..., begin:end] = band
    return scores, _weights(scores, visible_tokens(first, last, rule.sliding_window, scores.device), rule)


def attention_output(
    weights: Float[Tensor, "batch kv_heads repeats queries tokens"], values: DecodeView, first: int
) -> Float[Tensor, "batch query_heads queries value_dim"]:
    """Weighted sum of the values that each query of a chunk sees."""
    num_queries = weights.shape[3]
    last = first + num_queries - 1
    output = weights.flatten(2, 3) @ values.settled(first, last + 1)
    begin, end = values.mixed(first, last)
    if end > begin:
        band_weights = weights[..., begin:end] * values.reads_stored(first, last)
        output += band_weights.flatten(2, 3) @ (values.stored - values.exact)[:, :, begin:end]
    return output.unflatten(2, (-1, num_queries)).flatten(1, 2)


def query_heads_of(kv_heads: Sequence[int], repeats: int) -> list[int]:
    """The query heads that read these KV heads."""
    return [head * repeats + index for head in kv_heads for index in range(repeats)]


def visible_tokens(first: int, last: int, window: int | None, device: torch.device) -> Bool[Tensor, "queries tokens"]:
    """Causal mask of the queries at positions first..last, inside a sliding window where there is one."""
    positions = torch.arange(first, last + 1, device=device)[:, None]
    tokens = torch.arange(last + 1, device=device)[None, :]
    visible = tokens <= positions
    return visible if window is None else visible & (tokens > positions - window)


def _weights(scores: Tensor, visible: Tensor, rule: AttentionRule) -> Tensor:
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if rule.sink_logits is None:
        return torch.softmax(scores, dim=-1)
    # A learned sink takes part in the softmax and carries no value (GPT-OSS).
    kv_heads, repeats = scores.shape[1:3]
    sinks = rule.sink_logits.to(scores.dtype).reshape(1, kv_heads, repeats, 1, 1)
    with_sink = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    return torch.softmax(with_sink, dim=-1)[..., :-1]
