"""Numeric level against a plain float64 attention, one query at a time."""

from __future__ import annotations

import pytest
import torch

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import head_groups
from kvassay.engines.transformers.decode_attention import AttentionRule
from kvassay.engines.transformers.decode_scorer import LayerAttention
from kvassay.formats import quantizer
from kvassay.measures.attention_error import MEASURED_QUERIES, AttentionError, MeasuredFormat, attention_errors

QUERY_HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 64, 150
GEOMETRY = CacheGeometry(
    model_type="test",
    query_heads=QUERY_HEADS,
    layers=(LayerGeometry(kv_heads=KV_HEADS, head_dim=DIM, value_dim=DIM),),
)


def observed(seed=0, outlier=1.0) -> LayerAttention:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(1, QUERY_HEADS, TOKENS, DIM, generator=generator)
    keys = torch.randn(1, KV_HEADS, TOKENS, DIM, generator=generator)
    keys[..., 7] *= outlier
    values = torch.randn(1, KV_HEADS, TOKENS, DIM, generator=generator)
    return LayerAttention(0, queries, keys, values, AttentionRule(scaling=DIM**-0.5))


def errors_of(o: LayerAttention, kv_format) -> list[AttentionError]:
    return attention_errors(o, [MeasuredFormat(kv_format)], GEOMETRY)[0]


def seen_by(position: int, x: torch.Tensor, plan, exact_dtype: str) -> torch.Tensor:
    """What the query at `position` reads, by the definition: whole committed blocks are decoded codes."""
    exact = x[:, :, : position + 1].to(getattr(torch, exact_dtype))
    seen = exact.double()
    count = plan.committed_tokens(position + 1)
    if count and not plan.spec.is_exact:
        tokens = slice(plan.sinks, plan.sinks + count)
        codec = quantizer(plan.spec)
        seen[:, :, tokens] = codec.decode(codec.encode(exact[:, :, tokens]).streams, torch.float64)
    return seen


def outputs(o: LayerAttention, keys_of, values_of) -> torch.Tensor:
    rows = []
    for position in range(TOKENS - MEASURED_QUERIES, TOKENS):
        keys, values = keys_of(position), values_of(position)
        query = o.queries[:, :, position].double().unflatten(1, (KV_HEADS, -1))
        weights = torch.softmax(query @ keys.transpose(2, 3) * o.rule.scaling, -1)
        rows.append((weights @ values).flatten(1, 2))
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("name", ["int8-token-head", "kivi-2,recent=8,sinks=2", "int4-g32,recent=20", "q4_0"])
def test_r50_r81_r82_errors_equal_a_query_by_query_calculation(name) -> None:
    o, kv_format = observed(), parse_format(name)
    _, key_plan, value_plan = head_groups(kv_format, 0, GEOMETRY.layers[0])[0]

    def exact(x):
        return lambda position: x[:, :, : position + 1].double()

    def stored(x, plan):
        return lambda position: seen_by(position, x, plan, "float16")

    expected = outputs(o, exact(o.keys), exact(o.values))
    variants = {
        "keys": outputs(o, stored(o.keys, key_plan), exact(o.values)),
        "values": outputs(o, exact(o.keys), stored(o.values, value_plan)),
        "both": outputs(o, stored(o.keys, key_plan), stored(o.values, value_plan)),
    }
    for row in errors_of(o, kv_format):
        difference = variants[row.substituted] - expected
        assert row.output_max_abs == pytest.approx(float(difference.abs().max()), rel=1e-6, abs=1e-9)
        assert row.output_relative == pytest.approx(float(difference.norm() / expected.norm()), rel=1e-6, abs=1e-9)


def test_r83_a_value_error_moves_no_score_and_a_key_error_does() -> None:
    rows = {row.substituted: row for row in errors_of(observed(), parse_format("int4-g32"))}
    assert rows["values"].score_max_abs == rows["values"].weight_max_abs == 0.0
    assert rows["values"].output_max_abs > 0
    assert rows["keys"].score_max_abs > 0


def test_r96_an_outlier_channel_hurts_token_scales_and_not_channel_scales() -> None:
    loud = observed(outlier=40.0)
    by_token = errors_of(loud, parse_format("k=int4:token-head,v=f16"))[0]
    by_channel = errors_of(loud, parse_format("k=int4:channel32,v=f16"))[0]
    assert by_channel.output_relative < by_token.output_relative / 3


def test_an_exact_format_has_rounding_error_only() -> None:
    for row in errors_of(observed(), parse_format("f16")):
        assert row.output_relative < 1e-3
    for row in errors_of(observed(), parse_format("f32")):
        assert row.output_max_abs == row.score_max_abs == 0.0
