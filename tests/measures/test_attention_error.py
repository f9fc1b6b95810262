"""Numeric level against plain float64 attention, one query at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import head_groups
from kvassay.engines.transformers.decode_attention import AttentionRule
from kvassay.engines.transformers.decode_scorer import LayerAttention
from kvassay.formats import quantizer
from kvassay.measures.attention_error import (
    CellErrors,
    Errors,
    FormatErrors,
    MeasuredFormat,
    attention_errors,
)
from tests.measures.numeric_twin import cell_errors, int8_token_head

QUERY_HEADS, KV_HEADS, DIM, TOKENS, QUERIES = 4, 2, 64, 150, 70
GEOMETRY = CacheGeometry(
    model_type="test",
    query_heads=QUERY_HEADS,
    layers=(LayerGeometry(kv_heads=KV_HEADS, head_dim=DIM, value_dim=DIM),),
)
PARTS = ("reconstruction", "score", "weight", "output")


def observed(seed=0, outlier=1.0, tokens=TOKENS, dtype=torch.float32) -> LayerAttention:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(1, QUERY_HEADS, tokens, DIM, generator=generator, dtype=dtype)
    keys = torch.randn(1, KV_HEADS, tokens, DIM, generator=generator, dtype=dtype)
    keys[..., 7] *= outlier
    values = torch.randn(1, KV_HEADS, tokens, DIM, generator=generator, dtype=dtype)
    return LayerAttention(0, queries, keys, values, AttentionRule(scaling=DIM**-0.5))


def measured(o: LayerAttention, name: str, queries: int = QUERIES) -> FormatErrors:
    return attention_errors(o, [MeasuredFormat(parse_format(name))], GEOMETRY, queries)[0]


def cells(o: LayerAttention, name: str, queries: int = QUERIES) -> dict[tuple[int, str], CellErrors]:
    return {(cell.head, cell.substituted): cell for cell in measured(o, name, queries).cells}


def figures(cell: CellErrors) -> dict[str, float | None]:
    return {f"{part}_{kind}": getattr(getattr(cell, part), kind) for part in PARTS for kind in Errors._fields}


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
    """`[kv_heads, repeats, queries, dim]`."""
    rows = []
    for position in range(TOKENS - QUERIES, TOKENS):
        keys, values = keys_of(position), values_of(position)
        query = o.queries[:, :, position].double().unflatten(1, (KV_HEADS, -1))
        weights = torch.softmax(query @ keys.transpose(2, 3) * o.rule.scaling, -1)
        rows.append((weights @ values)[0])
    return torch.stack(rows, dim=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_r42_r43_r50_r95_every_figure_equals_a_float64_twin_in_numpy(dtype) -> None:
    """Also where the model itself runs in float64: the reference rounds nothing."""
    o = observed(seed=3, tokens=40, dtype=dtype)
    queries, keys, values = (x[0].double().numpy() for x in (o.queries, o.keys, o.values))
    twin = cell_errors(queries, keys, values, int8_token_head(keys), int8_token_head(values), o.rule.scaling, last=9)
    found = cells(o, "int8-token-head", queries=9)
    assert set(found) == set(twin)
    for key, expected in twin.items():
        for name, value in expected.items():
            assert figures(found[key])[name] == pytest.approx(value, rel=1e-9, abs=1e-13), (key, name)
        assert found[key].stored_reads == sum(range(31, 40))


@pytest.mark.parametrize("name", ["int8-token-head", "kivi-2,recent=8,sinks=2", "int4-g32,recent=20", "q4_0"])
def test_r81_r82_outputs_equal_a_query_by_query_calculation_for_windows_and_blocks(name) -> None:
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
    for (head, substituted), cell in cells(o, name).items():
        difference = (variants[substituted] - expected)[head]
        assert cell.output.max_abs == pytest.approx(float(difference.abs().max()), rel=1e-6, abs=1e-9)
        relative = float(difference.norm() / expected[head].norm())
        assert cell.output.relative == pytest.approx(relative, rel=1e-6, abs=1e-9)
        assert cell.output.rmse == pytest.approx(float(difference.square().mean().sqrt()), rel=1e-6, abs=1e-9)


def test_chunks_of_queries_change_no_figure(monkeypatch) -> None:
    o = observed()
    whole = cells(o, "kivi-4,recent=8")
    monkeypatch.setattr("kvassay.measures.attention_error.QUERIES_AT_ONCE", 13)
    for key, cell in cells(o, "kivi-4,recent=8").items():
        for name, value in figures(cell).items():
            assert value == pytest.approx(figures(whole[key])[name], rel=1e-9, abs=1e-13), name


def test_r83_a_value_error_moves_no_score_and_a_key_error_does() -> None:
    for (_, side), cell in cells(observed(), "int4-g32").items():
        if side == "values":
            assert cell.score == cell.weight == Errors(0.0, 0.0, 0.0)
        else:
            assert cell.score.max_abs > 0
            assert cell.weight.max_abs > 0
        assert cell.output.max_abs > 0


def test_r82_with_exact_keys_a_key_only_error_is_exactly_zero() -> None:
    found = cells(observed(), "k=f32,v=int4:group32,exact=f32")
    for head in range(KV_HEADS):
        keys, values, both = (found[head, side] for side in ("keys", "values", "both"))
        assert set(figures(keys).values()) == {0.0}
        assert keys.stored_reads == 0
        assert both.output == values.output
        assert both.output.max_abs > 0
        assert both.stored_reads == values.stored_reads > 0


def test_r93_a_broken_head_is_found_and_its_neighbour_is_not_blamed() -> None:
    """An outlier channel in one head, which one scale a token cannot bear."""
    o = observed()
    o.keys[:, 1, :, 7] *= 60
    found = cells(o, "k=int4:token-head,v=f16")
    assert found[1, "keys"].output.relative > 5 * found[0, "keys"].output.relative
    assert max(found.values(), key=lambda cell: cell.output.relative).head == 1
    alone = cells(observed(), "k=int4:token-head,v=f16")
    assert figures(found[0, "both"]) == figures(alone[0, "both"])


def test_small_values_do_not_hide_behind_large_keys() -> None:
    o = observed()
    loud = o._replace(keys=o.keys * 100)
    both = cells(loud, "k=int8:token-head,v=int2:group32")[0, "both"]
    values = cells(loud, "k=int8:token-head,v=int2:group32")[0, "values"]
    assert both.reconstruction.relative == values.reconstruction.relative > 0.1


def test_r96_an_outlier_channel_hurts_token_scales_and_not_channel_scales() -> None:
    loud = observed(outlier=40.0)
    by_token = cells(loud, "k=int4:token-head,v=f16")[0, "keys"]
    by_channel = cells(loud, "k=int4:channel32,v=f16")[0, "keys"]
    assert by_channel.output.relative < by_token.output.relative / 3


def test_an_exact_format_has_rounding_error_only() -> None:
    for cell in cells(observed(), "f16").values():
        assert 0 < cell.output.relative < 1e-3 or cell.substituted == "keys"
    for cell in cells(observed(), "f32").values():
        assert set(figures(cell).values()) == {0.0}


def test_what_was_not_stored_has_no_reconstruction_error_and_no_zero() -> None:
    for cell in cells(observed(), "int8-token-head,recent=200").values():
        assert cell.reconstruction == Errors(None, None, None)
        assert cell.stored_reads == 0


def test_an_error_on_a_zero_signal_has_no_relative_figure() -> None:
    """All values zero: there is nothing that an error could be relative to."""
    o = observed(tokens=40)
    silent = o._replace(values=torch.zeros_like(o.values))
    cell = cells(silent, "int8-token-head", queries=8)[0, "values"]
    assert cell.output == Errors(0.0, 0.0, 0.0)
    scaled = o._replace(keys=torch.zeros_like(o.keys))
    assert cells(scaled, "k=f16,v=int8:token-head", queries=8)[0, "values"].score == Errors(0.0, 0.0, 0.0)


def test_a_sliding_window_counts_what_its_queries_see() -> None:
    o = observed(tokens=60)
    narrow = o._replace(rule=o.rule._replace(sliding_window=16))
    geometry = GEOMETRY.model_copy(update={"layers": (GEOMETRY.layers[0].model_copy(update={"sliding_window": 16}),)})
    found = attention_errors(narrow, [MeasuredFormat(parse_format("int8-token-head"))], geometry, 5)[0]
    assert {cell.stored_reads for cell in found.cells} == {5 * 15}
    # Tokens that left every measured query's window take part in no figure, however wrong they are.
    o.values[:, :, :30] *= 1000
    again = attention_errors(narrow, [MeasuredFormat(parse_format("int8-token-head"))], geometry, 5)[0]
    assert [figures(cell) for cell in again.cells] == [figures(cell) for cell in found.cells]


def test_groups_of_heads_are_measured_with_their_own_formats() -> None:
    o = observed()
    mixed = cells(o, "int8-token-head,@0h1.k=int2:group32")
    plain = cells(o, "int8-token-head")
    assert figures(mixed[0, "both"]) == figures(plain[0, "both"])
    assert mixed[1, "keys"].output.relative > 10 * plain[1, "keys"].output.relative


def test_encoded_values_are_counted() -> None:
    counts = measured(observed(), "int8-token-head").counts
    assert counts.encoded_values == 2 * KV_HEADS * TOKENS * DIM
    assert measured(observed(), "f32").counts.encoded_values == 0


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from([2.0**power for power in (-3, -1, 1, 4)]),
    st.sampled_from(["int8-token-head", "int4-g32,exact=f32", "kivi-4,recent=8,exact=f32"]),
)
def test_scaling_the_values_scales_absolute_errors_and_leaves_relative_ones(seed, factor, name) -> None:
    """A power of two moves no code, so figures scale exactly up to the float16 scales' range."""
    o = observed(seed=seed, tokens=48)
    one = cells(o, name, queries=8)
    other = cells(o._replace(values=o.values * factor), name, queries=8)
    for head in range(KV_HEADS):
        a, b = one[head, "values"], other[head, "values"]
        for part in ("reconstruction", "output"):
            before, after = getattr(a, part), getattr(b, part)
            assert after.max_abs == pytest.approx(factor * before.max_abs, rel=1e-6)
            assert after.rmse == pytest.approx(factor * before.rmse, rel=1e-6)
            assert after.relative == pytest.approx(before.relative, rel=1e-6)
        assert figures(one[head, "keys"])["weight_max_abs"] == figures(other[head, "keys"])["weight_max_abs"]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_scaling_keys_against_queries_changes_no_weight(seed, factor) -> None:
    o = observed(seed=seed, tokens=48)
    one = cells(o, "k=int8:token-head,v=f32,exact=f32", queries=8)
    turned = o._replace(keys=o.keys * factor, queries=o.queries / factor)
    other = cells(turned, "k=int8:token-head,v=f32,exact=f32", queries=8)
    for head in range(KV_HEADS):
        a, b = one[head, "keys"], other[head, "keys"]
        for part in ("score", "weight", "output"):
            for kind in Errors._fields:
                assert getattr(getattr(b, part), kind) == pytest.approx(getattr(getattr(a, part), kind), rel=1e-6)
        assert b.reconstruction.max_abs == pytest.approx(factor * a.reconstruction.max_abs, rel=1e-6)
        assert b.reconstruction.relative == pytest.approx(a.reconstruction.relative, rel=1e-6)
