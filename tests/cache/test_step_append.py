"""Single tokens by the compiled module against the long way of the same append: pages, counts and bytes are equal."""

from __future__ import annotations

import pytest
import torch

from kvassay.cache import QuantizedCache
from kvassay.cache.side_store import SideStore
from kvassay.cache.step_append import LayerStep
from kvassay.core.format_names import parse_format
from kvassay.errors import NonFiniteError, RangeError
from kvassay.kernels import native_state
from tests.cache.test_operations import DIM, FORMATS, HEADS, WINDOW, small_config
from tests.thorough import some

pytestmark = pytest.mark.skipif(native_state().missing is not None, reason="kvassay was built without its module")

WINDOWS = ["", ",recent=3", ",sinks=4,recent=40", ",sinks=2", ",exact=bf16,recent=9", ",exact=f32,recent=1"]
SIMPLE = [
    "nf4-g64",
    "fp8-e4m3-token-head",
    "kv=int4:group32/had/seed=3",
    "int4-g64",
    "int8-token-head",
    "f16",
    "bf16",
    "f32",
    "k=int8:token-head/scale=f32,v=int2:group16",
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOKENS = WINDOW + 110
"""Past the window, and past the bounds of several pages."""


@pytest.fixture
def long_way(monkeypatch):
    """Make caches that never step."""

    def without_steps(make):
        with monkeypatch.context() as patch:
            patch.setattr(LayerStep, "of", classmethod(lambda cls, cohorts: None))
            return make()

    return without_steps


def grown(text: str, dtype: torch.dtype = torch.float32, rows: int = 2, first: int = 30) -> QuantizedCache:
    """A cache that got a prompt and then single tokens."""
    cache = QuantizedCache(small_config(), parse_format(text), on_clip="count")
    generator = torch.Generator().manual_seed(5)

    def states(tokens: int) -> torch.Tensor:
        # As a model gives them: heads and tokens swapped, and not dense.
        wide = 3 * torch.randn(rows, tokens, HEADS, DIM + 2, generator=generator)
        return wide[..., :DIM].to(dtype).transpose(1, 2)

    for tokens in (first, *([1] * (TOKENS - first))):
        for layer in range(2):
            cache.update(states(tokens), states(tokens), layer)
    return cache


def stores(cache: QuantizedCache) -> list[SideStore]:
    return [store for layer in cache.layers for cohort in layer.cohorts for store in cohort.stores]


def assert_same(found: QuantizedCache, expected: QuantizedCache) -> None:
    assert found.ledger() == expected.ledger()
    for one, other in zip(stores(found), stores(expected), strict=True):
        for count in ("tokens", "coded", "dropped", "encoded_values", "clipped_values"):
            assert getattr(one, count) == getattr(other, count), count
        assert torch.equal(one.read(torch.float64), other.read(torch.float64))
        for run, twin in zip(one.coded_pages, other.coded_pages, strict=True):
            assert (run.start, run.first, run.end) == (twin.start, twin.first, twin.end)
            raw, same = (each.pool.raw(each.table.ravel()) for each in (run, twin))
            assert torch.equal(raw, same)
        tail, twin = one.parts.tail, other.parts.tail
        assert (tail.start, tail.first, tail.end) == (twin.start, twin.first, twin.end)


def steps_taken(monkeypatch) -> list[bool]:
    taken: list[bool] = []
    given, append = LayerStep.given, LayerStep.append

    def asked(self, keys, values):
        found = given(self, keys, values)
        if found is None:
            taken.append(False)
        return found

    def counted(self, found):
        taken.append(append(self, found))
        return taken[-1]

    monkeypatch.setattr(LayerStep, "given", asked)
    monkeypatch.setattr(LayerStep, "append", counted)
    return taken


@pytest.mark.parametrize("text", some(FORMATS, 10))
def test_every_format_is_the_same_either_way(text, long_way) -> None:
    assert_same(grown(text), long_way(lambda: grown(text)))


@pytest.mark.parametrize(
    ("text", "window", "dtype"),
    [(text, window, DTYPES[(i + j) % 3]) for i, text in enumerate(SIMPLE) for j, window in enumerate(WINDOWS)],
    ids=str,
)
def test_windows_sinks_and_types_are_the_same_either_way(text, window, dtype, long_way) -> None:
    name = text + window
    assert_same(grown(name, dtype), long_way(lambda: grown(name, dtype)))


@pytest.mark.parametrize("text", [*SIMPLE, "int4-g64,recent=40", "kivi-4,recent=32", "kivi-2"])
def test_most_tokens_of_a_full_layer_go_the_short_way(text, monkeypatch) -> None:
    taken = steps_taken(monkeypatch)
    cache = QuantizedCache(small_config(), parse_format(text))
    for tokens in (30, *([1] * 200)):
        cache.update(torch.randn(1, HEADS, tokens, DIM), torch.randn(1, HEADS, tokens, DIM), 0)
    assert sum(taken) > 150
    assert all(taken)


@pytest.mark.parametrize("where", ["keys", "values"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("text", ["int4-g64", "int8-token-head,recent=9", "f16"])
def test_values_that_are_not_finite_are_refused_and_change_nothing(text, wrong, where) -> None:
    cache, untouched = grown(text), grown(text)
    given = {side: torch.randn(2, HEADS, 1, DIM) for side in ("keys", "values")}
    given[where][1, 1, 0, DIM - 1] = wrong
    with pytest.raises(NonFiniteError, match=f"{where} of layer 0"):
        cache.update(given["keys"], given["values"], 0)
    assert_same(cache, untouched)


def test_values_beyond_the_kept_type_are_refused() -> None:
    cache, untouched = grown("f16"), grown("f16")
    with pytest.raises(RangeError, match="values of layer 0"):
        cache.update(torch.randn(2, HEADS, 1, DIM), torch.full((2, HEADS, 1, DIM), 65520.0), 0)
    assert_same(cache, untouched)


@pytest.mark.parametrize("text", ["int4-g64", "int4-g64,recent=40", "kivi-4,recent=32", "f16"])
def test_a_fork_in_the_middle_of_a_page_changes_nothing_of_the_other(text, long_way) -> None:
    def both() -> list[QuantizedCache]:
        one = grown(text)
        other = one.fork()
        generator = torch.Generator().manual_seed(9)
        for _ in range(40):
            for cache in (one, other):
                for layer in range(2):
                    states = torch.randn(2, 2, HEADS, 1, DIM, generator=generator)
                    cache.update(states[0], states[1], layer)
        return [one, other]

    for found, expected in zip(both(), long_way(both), strict=True):
        for one, other in zip(stores(found), stores(expected), strict=True):
            assert torch.equal(one.read(torch.float64), other.read(torch.float64))


@pytest.mark.parametrize("text", ["int4-g64,recent=7", "kivi-4,recent=32", "bf16"])
def test_a_crop_and_a_reordering_in_between_are_the_same_either_way(text, long_way) -> None:
    def changed() -> QuantizedCache:
        cache = grown(text)
        generator = torch.Generator().manual_seed(3)
        for turn in range(6):
            cache.activate_past_recording() if turn == 4 else None
            for _ in range(9):
                for layer in range(2):
                    states = torch.randn(2, 2, HEADS, 1, DIM, generator=generator)
                    cache.update(states[0], states[1], layer)
            if turn in (1, 4):
                cache.layers[0].crop(-5)
            else:
                cache.reorder_cache(torch.tensor([1, 1] if turn == 2 else [1, 0]))
        return cache

    found, expected = changed(), long_way(changed)
    for one, other in zip(stores(found), stores(expected), strict=True):
        assert one.tokens == other.tokens
        assert torch.equal(one.read(torch.float64), other.read(torch.float64))


def test_other_shapes_go_the_long_way_and_are_refused_there() -> None:
    cache = grown("int4-g64")
    with pytest.raises(Exception, match="rows"):
        cache.update(torch.randn(3, HEADS, 1, DIM), torch.randn(3, HEADS, 1, DIM), 0)
    cache.update(torch.randn(2, HEADS, 5, DIM), torch.randn(2, HEADS, 5, DIM), 0)
    assert cache.get_seq_length() == TOKENS + 5
