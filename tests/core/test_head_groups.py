"""Which KV heads of a layer are stored alike: the rule of overrides, and its cost for shapes of a stranger's config."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, Owner
from kvassay.core.kv_format import KVFormat, Override, head_groups
from kvassay.core.ledger import predict_ledger
from kvassay.core.serving import check_serves
from kvassay.core.side_names import parse_side
from kvassay.core.spec import exact_spec

SIDES = [parse_side(text) for text in ("int8:token-head", "int4:token-head", "f16", "int4:group16")]


@st.composite
def formats(draw) -> KVFormat:
    overrides, targets = [], set()
    for _ in range(draw(st.integers(0, 4))):
        heads = draw(st.none() | st.sets(st.integers(0, 5), min_size=1).map(lambda found: tuple(sorted(found))))
        layers = tuple(sorted(draw(st.sets(st.integers(0, 1), min_size=1))))
        side = draw(st.sampled_from(["keys", "values"]))
        if (layers, heads, side) not in targets:
            targets.add((layers, heads, side))
            overrides.append(Override(layers=layers, heads=heads, **{side: draw(st.sampled_from(SIDES))}))
    skip = draw(st.sampled_from([(), (0,), (1,)]))
    return KVFormat(keys=SIDES[0], values=SIDES[1], recent=3, skip_layers=skip, overrides=tuple(overrides))


@settings(deadline=None)
@given(formats(), st.integers(0, 1), st.integers(1, 6))
def test_groups_are_those_of_a_head_by_head_reading(kv_format, layer, kv_heads) -> None:
    """Each head by the rule as it is written: the last override that names it holds, a skipped layer is exact."""
    expected: dict = {}
    for head in range(kv_heads):
        keys, values = kv_format.keys, kv_format.values
        for override in kv_format.overrides:
            if layer in override.layers and (override.heads is None or head in override.heads):
                keys, values = override.keys or keys, override.values or values
        if layer in kv_format.skip_layers:
            keys = values = exact_spec(kv_format.exact_dtype)
        expected.setdefault((keys, values), []).append(head)
    geometry = LayerGeometry(kv_heads=kv_heads, head_dim=16, value_dim=16)
    found = head_groups(kv_format, layer, geometry)
    assert [(group.keys.spec, group.values.spec, group.heads) for group in found] == [
        (*specs, tuple(heads)) for specs, heads in expected.items()
    ]
    assert [group.num_heads for group in found] == [len(heads) for heads in expected.values()]


def test_b61_millions_of_heads_cost_no_more_than_one() -> None:
    """A config may name 2^24 KV heads in each of many layers; bytes and refusals follow without listing them."""
    layer = LayerGeometry(kv_heads=1 << 24, head_dim=64, value_dim=64)
    geometry = CacheGeometry(model_type="llama", query_heads=1 << 24, layers=(layer,) * 200, max_context=None)
    kv_format = parse_format("int4-g32,recent=8,skip=3,@5=int8:token-head")
    began = time.perf_counter()
    check_serves(kv_format, geometry)
    ledger = predict_ledger(geometry, kv_format, 100)
    assert time.perf_counter() - began < 5
    one = geometry.model_copy(update={"layers": (layer.model_copy(update={"kv_heads": 1}),) * 200})
    of_one = predict_ledger(one, kv_format, 100)
    for owner in (Owner.CODES, Owner.SKIPPED_LAYERS):
        assert ledger.keys_nbytes[owner] == (1 << 24) * of_one.keys_nbytes[owner]
