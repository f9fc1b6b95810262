"""The allocator against brute force, and the formats that it makes against the real ledger."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import head_groups
from kvassay.core.ledger import predict_ledger
from kvassay.core.serving import check_serves
from kvassay.errors import FormatError, SearchError
from kvassay.find.allocation import Choice, allocate
from kvassay.find.candidates import allocation_within, frontier, sequence
from kvassay.find.ladder import allocated_format, isolated_format, parse_ladder, unit_nbytes, units_of

TEMPLATES = (
    "kv=int{bits}:group32",
    "kv=exl3-{bits}",
    "k=int{bits}:channel32,v=int{bits}:token,recent=20",
    "kv=int{bits}:token/sym,sinks=4,recent=3,exact=bf16",
    "kv=int{bits}:head",
)

choice = st.builds(
    Choice, st.integers(0, 12).map(lambda n: 64 * n), st.floats(-1, 8, allow_nan=False).map(lambda x: round(x, 3))
)
instances = st.lists(st.lists(choice, min_size=1, max_size=4), min_size=1, max_size=5)


def brute_force(units, budget: int) -> float:
    return min(sum(c.loss for c in picked) for picked in product(*units) if sum(c.nbytes for c in picked) <= budget)


def least(units) -> int:
    return sum(min(c.nbytes for c in choices) for choices in units)


@settings(deadline=None, max_examples=200)
@given(instances, st.integers(0, 3000))
def test_exact_allocation_is_the_best_of_all(units, more) -> None:
    budget = least(units) + more
    found = allocate(units, budget)
    assert found.method == "exact"
    assert found.nbytes == sum(units[u][i].nbytes for u, i in enumerate(found.chosen)) <= budget
    assert found.loss == pytest.approx(sum(units[u][i].loss for u, i in enumerate(found.chosen)), abs=1e-9)
    assert found.loss == pytest.approx(brute_force(units, budget), abs=1e-9)


@settings(deadline=None, max_examples=200)
@given(instances, st.integers(0, 3000))
def test_the_hull_is_within_its_bound_and_the_bound_below_the_best(units, more) -> None:
    budget = least(units) + more
    found = allocate(units, budget, most_cells=0)
    assert found.method == "convex hull"
    assert found.nbytes == sum(units[u][i].nbytes for u, i in enumerate(found.chosen)) <= budget
    best = brute_force(units, budget)
    assert found.bound - 1e-9 <= best <= found.loss + 1e-9


@settings(deadline=None, max_examples=100)
@given(instances, st.integers(0, 2000), st.integers(0, 2000), st.sampled_from([0, 40_000_000]))
def test_more_bytes_never_lose_more(units, first, more, most_cells) -> None:
    budget = least(units) + first
    small, large = (allocate(units, each, most_cells) for each in (budget, budget + more))
    assert large.loss <= small.loss


def test_equal_losses_take_fewer_bytes() -> None:
    assert allocate([[Choice(640, 1.0), Choice(64, 1.0)]], 10_000).nbytes == 64


def test_a_budget_below_the_cheapest_is_refused() -> None:
    with pytest.raises(SearchError, match="the cheapest choices store 64 bytes and the budget is 63"):
        allocate([[Choice(64, 0.0)]], 63)
    with pytest.raises(SearchError, match="at least one choice"):
        allocate([[]], 63)


@st.composite
def geometries(draw) -> CacheGeometry:
    layers = tuple(
        LayerGeometry(
            kv_heads=draw(st.integers(1, 3)),
            head_dim=64,
            value_dim=draw(st.sampled_from([32, 64])),
            sliding_window=draw(st.sampled_from([None, 24])),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    return CacheGeometry(model_type="llama", query_heads=6, layers=layers)


@settings(deadline=None, max_examples=60)
@given(geometries(), st.sampled_from(TEMPLATES), st.sampled_from(["layer", "head"]), st.integers(1, 300), st.data())
def test_bytes_of_units_are_those_of_the_ledger(geometry, template, by, tokens, data) -> None:
    """By layer they add up to the byte; by head they are never below it."""
    ladder = parse_ladder(template, [2, 4, 8, 16])
    units = units_of(geometry, by)
    widths = {unit: data.draw(st.sampled_from(ladder.widths)) for unit in units}
    kv_format = allocated_format(ladder, geometry, widths)
    assert parse_format(kv_format.name) == kv_format
    check_serves(kv_format, geometry)
    for unit, width in widths.items():
        for group in head_groups(kv_format, unit.layer, geometry.layers[unit.layer]):
            if unit.head is None or unit.head in group.heads:
                plan = group.keys if unit.side == "keys" else group.values
                assert plan.spec == ladder.spec(width, unit.side)
    counted = sum(unit_nbytes(ladder, geometry, unit, width, tokens) for unit, width in widths.items())
    real = predict_ledger(geometry, kv_format, tokens).persistent_nbytes
    assert counted == real if by == "layer" else counted >= real


@settings(deadline=None, max_examples=40)
@given(geometries(), st.sampled_from(["layer", "head"]), st.floats(0, 1), st.randoms(use_true_random=False))
def test_an_allocated_format_is_never_above_its_budget(geometry, by, share, random) -> None:
    ladder = parse_ladder("kv=int{bits}:group32", [2, 3, 4, 8])
    isolated = [
        [Choice(unit_nbytes(ladder, geometry, unit, width, 100), random.random() / 4**width) for width in ladder.widths]
        for unit in units_of(geometry, by)
    ]
    low, high = (sum(pick(c.nbytes for c in choices) for choices in isolated) for pick in (min, max))
    budget = int(low + share * (high - low))
    candidate = allocation_within(geometry, 100, ladder, by, isolated, budget)
    assert candidate is not None
    assert candidate.ledger.persistent_nbytes <= budget
    assert candidate.predicted_kl == pytest.approx(allocate(isolated, budget).loss)
    assert allocation_within(geometry, 100, ladder, by, isolated, low - 1) is None


def test_isolated_formats_quantize_one_unit_alone() -> None:
    geometry = CacheGeometry(
        model_type="llama", query_heads=4, layers=(LayerGeometry(kv_heads=2, head_dim=64, value_dim=64),) * 3
    )
    ladder = parse_ladder("k=int{bits}:channel32,v=int{bits}:group32,recent=8,sinks=2", [2, 4])
    for by in ("layer", "head"):
        for unit in units_of(geometry, by):
            kv_format = isolated_format(ladder, unit, 4)
            quantized = {
                (index, plan.side, head)
                for index, layer in enumerate(geometry.layers)
                for group in head_groups(kv_format, index, layer)
                for plan in (group.keys, group.values)
                for head in group.heads
                if not plan.spec.is_exact
            }
            heads = range(2) if unit.head is None else (unit.head,)
            assert quantized == {(unit.layer, unit.side, head) for head in heads}
            assert (kv_format.recent, kv_format.sinks) == (8, 2)
            assert {spec.code_dtype for spec in kv_format.specs if spec.is_exact} == {"float32"}


@pytest.mark.parametrize(
    ("template", "widths", "error", "message"),
    [
        ("kv=int4:group32", [2, 4], SearchError, "has no {bits} in it"),
        ("kv=int{bits}:group32", [4, 4], SearchError, "two widths or more"),
        ("kv=int{bits}:group32,@3=f16", [2, 4], SearchError, "names layers"),
        ("kv=exl3-{bits}", [4, 9], FormatError, "at width 9: codec 'exl3-9' is unknown"),
    ],
)
def test_ladders_that_are_none_say_why(template, widths, error, message) -> None:
    with pytest.raises(error, match=message):
        parse_ladder(template, widths)


def test_the_frontier_leaves_out_what_costs_and_loses_more() -> None:
    cost = {"a": 8.0, "b": 6.0, "c": 6.0, "d": 4.0, "e": 3.0}
    kl = {"a": 0.01, "b": 0.1, "c": 0.02, "d": 0.02, "e": 0.5}
    assert frontier(cost, kl) == ["a", "d", "e"]


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=12))
def test_a_frontier_rises_in_both_and_dominates_the_rest(points) -> None:
    kept = frontier({n: p[0] for n, p in points.items()}, {n: p[1] for n, p in points.items()})
    for one, other in pairwise(kept):
        assert points[one][0] > points[other][0]
        assert points[one][1] < points[other][1]
    for cost, loss in points.values():
        assert any(points[name][0] <= cost and points[name][1] <= loss for name in kept)


def test_the_sequence_begins_with_the_safest_and_steps_over_the_limit_once() -> None:
    names = [f"f{index}" for index in range(12)]
    shares: dict[str, float | None] = {name: 0.05 * 1.5**index for index, name in enumerate(names)}
    found = sequence(names, shares, 6)
    assert found[0] == "f0"
    assert found == sorted(found, key=names.index)
    assert len(found) == 6
    assert any((shares[name] or 0) > 1 for name in found[-1:])
    assert sequence(names, dict.fromkeys(names, 5.0), 6) == ["f0"]
    even = sequence(names, dict.fromkeys(names), 4)
    assert (even[0], even[-1], len(even)) == ("f0", "f11", 4)
