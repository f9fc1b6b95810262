"""What ranks formats: errors of what attention computes, not of the arrays alone."""

from __future__ import annotations

import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.engines.transformers.decode_attention import AttentionRule
from kvassay.engines.transformers.decode_scorer import LayerAttention
from kvassay.measures.attention_error import CellErrors, MeasuredFormat, attention_errors

DIM, TOKENS, QUERIES, LOUD = 64, 160, 60, 8
GEOMETRY = CacheGeometry(
    model_type="test", query_heads=1, layers=(LayerGeometry(kv_heads=1, head_dim=DIM, value_dim=DIM),)
)


def keys_only(name: str, seed: int) -> CellErrors:
    """Queries look along eight channels, in which the keys are eight times as large."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.zeros(1, 1, TOKENS, DIM)
    queries[..., :LOUD] = torch.randn(1, 1, TOKENS, LOUD, generator=generator)
    keys = torch.randn(1, 1, TOKENS, DIM, generator=generator)
    keys[..., :LOUD] *= 8
    values = torch.randn(1, 1, TOKENS, DIM, generator=generator)
    observed = LayerAttention(0, queries, keys, values, AttentionRule(scaling=DIM**-0.5))
    (found,) = attention_errors(observed, [MeasuredFormat(parse_format(name))], GEOMETRY, QUERIES)
    return next(cell for cell in found.cells if cell.substituted == "keys")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_b21_r83_formats_of_like_array_error_are_told_apart_by_the_error_of_logits(seed: int) -> None:
    """One puts its error where the queries look, the other spreads it over all channels."""
    focused, spread = keys_only("k=int4:token/group8,v=f16", seed), keys_only("k=int4:token/group64/had,v=f16", seed)
    arrays = [cell.reconstruction.relative for cell in (focused, spread)]
    logits = [cell.score.rmse for cell in (focused, spread)]
    assert None not in arrays + logits
    assert arrays[0] < arrays[1] < 2 * arrays[0], "by the array's error the first is the better one, by less than two"
    assert logits[0] > 1.15 * logits[1], "by the logits' error it is the worse one"
