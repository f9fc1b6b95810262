"""R31: a real cache, filled by chunks, against the formula; R29: its last step's transient memory is recorded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvassay.core.capacity import Holds
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry, geometry_from_config
from kvassay.core.ledger import predict_ledger
from kvassay.errors import CapacityError
from kvassay.measures import cache_fill, capacity_run
from kvassay.measures.cache_fill import MOST_CHUNKS, chunk_ends, fill, synthetic_cache, synthetic_config
from kvassay.measures.capacity_run import CapacityRun, FillRequest, run_fill


def geometry(*windows: int | None) -> CacheGeometry:
    layers = tuple(LayerGeometry(kv_heads=2, head_dim=64, value_dim=64, sliding_window=window) for window in windows)
    return CacheGeometry(model_type="test", query_heads=4, layers=layers)


@pytest.mark.parametrize("name", [preset.name for preset in PRESETS])
def test_r31_b61_every_format_holds_what_the_formula_says_at_every_chunk(name, monkeypatch) -> None:
    """Chunks of 17 tokens, full and sliding layers, static scales calibrated on the way."""
    monkeypatch.setattr(cache_fill, "CHUNK_NBYTES", 3 * 2 * 2 * 64 * 2 * 17)
    shape, kv_format = geometry(None, 50), parse_format(name)
    seen = []
    for filled in fill(synthetic_cache(shape, kv_format), 3, 140, [131]):
        expected = predict_ledger(shape, kv_format, filled.tokens, 3)
        assert filled.ledger.keys_nbytes == expected.keys_nbytes
        assert filled.ledger.values_nbytes == expected.values_nbytes
        seen.append(filled)
    lengths = [filled.tokens for filled in seen]
    assert {131, 139, 140} <= set(lengths)
    assert len(lengths) > 8 or kv_format.exact_dtype == "float32"
    assert [filled.transient_nbytes is None for filled in seen] == [True] * (len(seen) - 1) + [False]
    assert seen[-1].transient_nbytes > 0


@given(
    st.lists(
        st.builds(
            LayerGeometry,
            kv_heads=st.integers(1, 8),
            head_dim=st.sampled_from([32, 64, 80]),
            value_dim=st.sampled_from([32, 64, 80]),
            sliding_window=st.none() | st.integers(1, 500),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_synthetic_config_reads_back_to_the_same_layers(layers) -> None:
    shape = CacheGeometry(model_type="test", query_heads=840, layers=tuple(layers))
    assert geometry_from_config(synthetic_config(shape).to_dict()).layers == shape.layers


@settings(max_examples=200)
@given(st.integers(1, 5000), st.integers(1, 100_000), st.integers(1, 5000))
def test_chunks_end_at_every_stop_and_are_bounded(batch, context, stop) -> None:
    shape, kv_format = geometry(None), parse_format("int4-g64")
    stops = sorted({min(stop, context), context - 1, context} - {0})
    ends = chunk_ends(shape, kv_format, batch, stops)
    assert ends == sorted(set(ends))
    assert set(stops) <= set(ends)
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert all(size * batch * 512 <= cache_fill.CHUNK_NBYTES or size <= -(-context // MOST_CHUNKS) for size in sizes)


def test_formats_that_need_a_models_weights_are_refused_with_what_to_run_instead() -> None:
    with pytest.raises(CapacityError, match="without keybias= and rope=, which store the same bytes"):
        synthetic_cache(geometry(None), parse_format("int4-g64,keybias=removed"))


def request(name: str, batch: int, budget_nbytes: int, context: int = 100) -> FillRequest:
    return FillRequest(
        geometry=geometry(None, 30),
        kv_format=parse_format(name),
        batch=batch,
        context=context,
        holds=Holds.CACHE,
        weights_nbytes=None,
        budget_nbytes=budget_nbytes,
    )


@pytest.mark.slow
def test_r31_a_fresh_process_tells_at_the_byte_whether_a_batch_fits() -> None:
    asked = request("kivi-2,recent=0", 5, 1)
    lengths = [predict_ledger(asked.geometry, asked.kv_format, length, 5).persistent_nbytes for length in range(1, 101)]
    full = max(lengths)
    fullest = max(length for length, nbytes in enumerate(lengths, 1) if nbytes == full)
    assert fullest < 99, "keys are packed on the way, and the length where most waits is no chunk's end by itself"
    steps = []
    fits = run_fill(asked.model_copy(update={"budget_nbytes": full}), lambda done, of: steps.append((done, of)))
    misfit = run_fill(asked.model_copy(update={"budget_nbytes": full - 1}))
    assert (fits.fits, fits.tokens, fits.used_nbytes, fits.used_tokens) == (True, 100, full, fullest)
    assert (misfit.fits, misfit.tokens) == (False, fullest)
    assert steps[-1][0] == steps[-1][1] > 0
    assert fits.agrees
    assert misfit.agrees
    assert CapacityRun(fits, misfit, 5, 6).confirmed
    assert not CapacityRun(misfit, misfit, 5, 6).confirmed, "the answer must fit"
    assert not CapacityRun(fits, fits, 5, 6).confirmed, "the next batch must not"
    other = fits.model_copy(update={"persistent_nbytes": fits.persistent_nbytes + 1})
    assert not CapacityRun(other, misfit, 5, 6).confirmed, "a byte beside the formula"


@pytest.mark.slow
def test_r19_resident_memory_grows_by_about_the_cache() -> None:
    """118 MB of whole pages (an untouched end of a page is allocated and not resident); freed arrays are returned."""
    asked = request("f16", 1800, 2**30, context=64)
    found = run_fill(asked.model_copy(update={"geometry": geometry(None, None)}))
    grown = found.resident_after_nbytes - found.resident_before_nbytes
    paging = 1800 * 2 * 2 * 16  # a page of each row, layer and side
    assert found.persistent_nbytes == 1800 * 64 * 2 * 2 * 2 * 64 * 2 + paging
    assert 0.9 * found.persistent_nbytes < grown < 1.5 * found.persistent_nbytes + 16 * 2**20
    assert found.resident_high_water_nbytes >= found.resident_after_nbytes


def test_a_process_that_dies_is_an_error_that_says_so(tmp_path, monkeypatch) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -9 $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(capacity_run.sys, "executable", str(dying))
    with pytest.raises(CapacityError, match="ended by signal 9, for lack of memory most likely"):
        run_fill(request("f16", 1, 1000))


@pytest.mark.slow
def test_an_error_inside_the_process_comes_out_as_its_own_message() -> None:
    with pytest.raises(CapacityError, match="without keybias= and rope="):
        run_fill(request("int4-g64,keybias=removed", 1, 1000))
