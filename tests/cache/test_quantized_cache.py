"""The cache against a plain list of tensors: what it stores, what it hands out, and every byte of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.cache import QuantizedCache
from kvassay.cache.side_store import SideStore
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.ledger import predict_ledger
from kvassay.errors import CalibrationError, FormatError, GeometryError, NonFiniteError, RangeError
from kvassay.formats import quantizer
from tests import tiny_models

HEADS, DIM = 2, 64
DYNAMIC = [preset.name for preset in PRESETS if not parse_format(preset.name).keys.needs_calibration]


def values(tokens, batch=2, seed=0) -> torch.Tensor:
    return torch.randn(batch, HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed))


def key_store(kv_format: KVFormat, window: int | None = None) -> SideStore:
    geometry = LayerGeometry(kv_heads=HEADS, head_dim=DIM, value_dim=DIM, sliding_window=window)
    return SideStore(head_groups(kv_format, 0, geometry)[0].keys, HEADS, DIM, kv_format.exact_dtype, on_clip="count")


def expected_read(plan: SidePlan, exact_dtype: str, x: torch.Tensor) -> torch.Tensor:
    """The definition, written out: exact values with whole committed blocks replaced by their decoded codes."""
    dtype = plan.spec.code_dtype if plan.spec.is_exact else exact_dtype
    exact = x.to(getattr(torch, dtype))
    seen = exact.to(torch.float32)
    begin, block = plan.sinks, plan.spec.tokens_per_block
    codec = quantizer(plan.spec)
    first = begin
    while first + block <= x.shape[2] and first + block - 1 <= x.shape[2] - 1 - plan.recent:
        tokens = slice(first, first + block)
        seen[:, :, tokens] = codec.decode(codec.encode(exact[:, :, tokens]).streams)
        first += block
    return seen


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from([*DYNAMIC, "k=int4:channel16,v=int2:group16"]),
    sinks=st.integers(0, 6),
    recent=st.integers(0, 40),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_b45_b46_what_is_read_is_exact_in_the_window_and_decoded_codes_before(name, sinks, recent, chunks) -> None:
    """At every step the last `recent` tokens and the sinks are bit-exact, all older whole blocks come from codes."""
    kv_format = parse_format(f"{name},sinks={sinks},recent={recent}")
    store = key_store(kv_format)
    x = values(sum(chunks))
    end = 0
    for chunk in chunks:
        store.append(x[:, :, end : end + chunk])
        end += chunk
        expected = expected_read(store.plan, kv_format.exact_dtype, x[:, :, :end])
        assert torch.equal(store.read(), expected)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(DYNAMIC),
    window=st.integers(4, 60),
    chunks=st.lists(st.integers(1, 50), min_size=1, max_size=6),
)
def test_b39_a_sliding_layer_keeps_at_least_its_window_and_stays_bounded(name, window, chunks) -> None:
    kv_format = parse_format(f"{name},recent=8,sinks=3")
    store = key_store(kv_format, window)
    whole = key_store(parse_format(f"{name},recent=8,sinks=0"))
    x = values(sum(chunks))
    end = 0
    for chunk in chunks:
        store.append(x[:, :, end : end + chunk])
        whole.append(x[:, :, end : end + chunk])
        end += chunk
        kept = store.read()
        # Whole blocks are dropped, and a token must be committed before it can be.
        block = store.plan.spec.tokens_per_block
        assert min(end, window) <= kept.shape[2] <= max(window, store.plan.recent + block) + block
        assert torch.equal(kept, whole.read()[:, :, store.first_token :])


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("model_name", tiny_models.NAMES)
def test_b40_returned_length_equals_the_announced_mask_width(name, model_name) -> None:
    model = tiny_models.tiny_model(model_name)
    cache = QuantizedCache(model.config, f"{name},recent=5,sinks=2", on_clip="count")
    for tokens in (7, 1, 30, 1, 1, 13):
        for layer in range(len(cache)):
            length, offset = cache.get_mask_sizes(tokens, layer)
            before = cache.get_seq_length(layer)
            keys, seen_values = cache.update(values(tokens, 1), values(tokens, 1), layer)
            assert keys.shape[2] == seen_values.shape[2] == length
            assert offset + length == before + tokens == cache.get_seq_length(layer)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(DYNAMIC),
    sinks=st.integers(0, 5),
    recent=st.integers(0, 140),
    skip=st.sampled_from(["none", "0", "0+2"]),
    batch=st.integers(1, 3),
    chunks=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    model_name=st.sampled_from(["llama", "gemma3"]),
)
def test_r19_b61_predicted_bytes_equal_the_real_storages(name, sinks, recent, skip, batch, chunks, model_name) -> None:
    """R13 to R16, R19, R85, B62: by side and by owner, summed from the storages, for any way the tokens came."""
    config = tiny_models.tiny_config(model_name)
    cache = QuantizedCache(config, f"{name},sinks={sinks},recent={recent},skip={skip}", on_clip="count")
    for chunk in chunks:
        for layer in range(len(cache)):
            cache.update(values(chunk, batch), values(chunk, batch), layer)
    allocated = cache.ledger()
    computed = predict_ledger(cache.geometry, cache.kv_format, sum(chunks), batch)
    assert allocated.keys_nbytes == computed.keys_nbytes
    assert allocated.values_nbytes == computed.values_nbytes
    assert allocated.persistent_nbytes == sum(_storage_nbytes(cache))


def _storage_nbytes(cache: QuantizedCache) -> list[int]:
    """Bytes of every tensor and block table that the cache's objects reach, each storage once."""
    storages: dict[int, int] = {}
    for layer in cache.layers:
        for store in layer.stores:
            for pool in store.pools:
                for slab in pool.slabs:
                    storages[slab.untyped_storage().data_ptr()] = slab.untyped_storage().nbytes()
                for records in (pool._references, pool._slab_of, pool._place_of):
                    storages[id(records)] = records.nbytes
            for _, _, parts in store.paged_parts(False):
                for rows in parts:
                    storages[id(rows)] = rows._columns.nbytes
    return list(storages.values())


def test_b27_int8_is_really_small() -> None:
    config = tiny_models.tiny_config("llama")
    sizes = {}
    for name in ("f32", "f16", "int8-token-head", "int4-g64"):
        cache = QuantizedCache(config, name)
        for layer in range(len(cache)):
            cache.update(values(512), values(512), layer)
        sizes[name] = cache.ledger().persistent_nbytes
    assert sizes["int8-token-head"] < 0.6 * sizes["f16"]
    assert sizes["int4-g64"] < 0.3 * sizes["f16"]


@pytest.mark.parametrize("name", ["f32", "int8-token-head", "kivi-4,recent=8", "q4_0,sinks=2"])
@pytest.mark.parametrize("model_name", tiny_models.NAMES)
def test_generate_runs_and_identity_equals_the_models_own_cache(name, model_name) -> None:
    model = tiny_models.tiny_model(model_name).float()
    prompt = torch.arange(3, 43)[None]
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    cache = QuantizedCache(model.config, name)
    found = model.generate(prompt, cache=cache, **options)
    assert found.shape == (1, 60)
    assert cache.get_seq_length() == 59
    if name == "f32":
        assert torch.equal(found, model.generate(prompt, **options))


def test_b38_b32_unsupported_shapes_are_refused_at_construction() -> None:
    config = tiny_models.tiny_config("llama")
    config.head_dim = 80
    with pytest.raises(GeometryError, match=r"head_dim 80 is not a multiple of group 64; use group 40 or 80"):
        QuantizedCache(config, "int4-g64")
    with pytest.raises(FormatError, match=r"names layer 3, the model has layers 0 to 2"):
        QuantizedCache(tiny_models.tiny_config("llama"), "int8-token-head,skip=3")


@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("name", ["int8-token-head", "fp8-e4m3", "kv=int4:group16", "kv=int2:channel32"])
def test_b32_head_sizes_work_at_every_length(dim, name) -> None:
    config = tiny_models.tiny_config("llama")
    config.head_dim = dim
    for tokens in (1, 13, 63, 64, 65):
        cache = QuantizedCache(config, name)
        x = torch.randn(1, HEADS, tokens, dim)
        keys, _ = cache.update(x, x, 0)
        assert keys.shape == x.shape


def test_b36_keys_repeated_to_query_heads_are_refused() -> None:
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "int8-token-head")
    repeated = torch.randn(1, 4, 5, DIM)
    with pytest.raises(GeometryError, match=r"\(kv_heads, head_dim\) = \(4, 64\), the config says \(2, 64\)"):
        cache.update(repeated, repeated, 0)


def test_b30_a_refused_append_changes_nothing() -> None:
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "int8-token-head")
    cache.update(values(10), values(10), 0)
    store = next(cache.layers[0].stores)
    before = store.read().clone()
    bad = values(3)
    bad[1, 0, 2, 5] = torch.inf
    with pytest.raises(NonFiniteError, match="keys of layer 0: entries hold 0 NaN and 1 infinite"):
        store.append(bad)
    assert torch.equal(store.read(), before)


def test_b02_saturating_values_raise_unless_counting_was_asked_for() -> None:
    config = tiny_models.tiny_config("llama")
    loud = values(4)
    loud[..., 0] = 600.0
    with pytest.raises(RangeError, match="16 values saturate in float8 with a unit scale"):
        QuantizedCache(config, "fp8-e4m3").update(loud, values(4), 0)
    counting = QuantizedCache(config, "fp8-e4m3", on_clip="count")
    counting.update(loud, values(4), 0)
    assert counting.clipped_values == 16


def test_b08_static_scales_must_be_given() -> None:
    config = tiny_models.tiny_config("llama")
    with pytest.raises(CalibrationError, match="static scales or means for the keys of layer 0 and got none"):
        QuantizedCache(config, "int8-tensor")


def test_reset_forgets_everything() -> None:
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "kivi-2,recent=4")
    for layer in range(len(cache)):
        cache.update(values(80), values(80), layer)
    cache.reset()
    assert cache.get_seq_length() == 0
    with pytest.raises(GeometryError, match="empty"):
        cache.ledger()


def test_a_refused_update_leaves_keys_and_values_as_they_were() -> None:
    """Good keys beside bad values: neither side may keep the call."""
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "int4-g32,recent=4")
    cache.update(values(9), values(9), 0)
    bad = values(3)
    bad[0, 0, 1, 5] = torch.nan
    with pytest.raises(NonFiniteError, match="values of layer 0"):
        cache.update(values(3), bad, 0)
    keys, seen = cache.update(values(2), values(2), 0)
    assert keys.shape[2] == seen.shape[2] == 11


@pytest.mark.parametrize(
    ("keys", "vals", "message"),
    [
        (values(5), values(3), r"keys of \(batch, tokens\) \(2, 5\) and values of \(2, 3\)"),
        (values(1, batch=3), values(1, batch=3), "expected 2 rows"),
        (values(1)[..., :32], values(1), r"\(kv_heads, head_dim\) = \(2, 32\)"),
        (values(1).long(), values(1), "torch.int64"),
        (values(1)[0], values(1), "expected floats"),
    ],
)
def test_later_calls_of_another_shape_or_dtype_are_refused(keys, vals, message) -> None:
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "int8-token-head")
    cache.update(values(4), values(4), 0)
    with pytest.raises(GeometryError, match=message):
        cache.update(keys, vals, 0)


@pytest.mark.parametrize("name", ["kivi-4,recent=0", "kv=int8:group32/asym", "fp8-e4m3-token-head", "q8_0"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_near_the_end_of_the_range_are_read_back_finite(name, dtype) -> None:
    """codes x scale overflows float16 where the value itself fits, so decoding computes in float32."""
    x = (values(64) * 20000).clamp(-60000, 60000)
    store = key_store(parse_format(f"{name},exact=f32"))
    store.append(x)
    read = store.read(dtype)
    assert bool(torch.isfinite(read).all())
    torch.testing.assert_close(read, store.read().clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype))


def test_a_cache_keeps_no_gradient_graph() -> None:
    cache = QuantizedCache(tiny_models.tiny_config("llama"), "int4-g32,recent=4")
    keys, _ = cache.update(values(9).requires_grad_(), values(9), 0)
    assert not keys.requires_grad
