"""The transient peak of a layer's call: predicted without torch, against what the allocator hands out, by path."""

from __future__ import annotations

import random

import pytest
import torch

from kvassay.cache import QuantizedCache, side_codec
from kvassay.cache.native_rows import NativeRows
from kvassay.core import kernel_reach
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kernel_reach import in_place
from kvassay.core.ledger import predict_ledger
from kvassay.core.method_table import TABLE
from kvassay.core.methods import InPlace
from kvassay.core.model_source import geometry_of
from kvassay.core.spec import FloatDtype
from kvassay.core.transient_peak import (
    Phase,
    TransientBasis,
    TransientPath,
    call_tokens,
    layer_peak,
    transient_peaks,
)
from kvassay.core.transient_side import working_nbytes
from kvassay.core.workspace import workspace
from kvassay.errors import GeometryError
from kvassay.formats import quantizer
from kvassay.kernels import encode
from kvassay.measures.cache_fill import synthetic_config
from kvassay.measures.layer_transient import LayerCall, empty_layer, layer_transient
from kvassay.measures.memory_peak import watch_memory
from tests.thorough import times

FORMATS = (
    "int8-token-head",
    "int4-g64",
    "int4-g32,recent=16,sinks=4",
    "int8-token-head,recent=100",
    "kivi-4",
    "kivi-2,recent=32",
    "fp8-e4m3",
    "fp8-e4m3-token-head",
    "nvfp4",
    "mxfp4",
    "nf4-g64",
    "kv=int4:group32/had=32",
    "turboquant-mse-4",
    "exl3-4",
    "q8_0",
    "q4_0",
    "kivi-2-promoted",
    "kvarn",
    "f16",
    "bf16",
)
PATHS = list(TransientPath)
FLOOR_NBYTES = {TransientPath.KERNELS: 1 << 12, TransientPath.TORCH: 1 << 14}
"""What operators wrap and allocate for a few numbers; a decode step by kernels may need little more."""
EXAMPLES = [example for row in TABLE for example in row.examples if row.name != "float"]


REL = {TransientPath.KERNELS: 0.10, TransientPath.TORCH: 0.15}
"""Copies that the torch twin makes of a page, to put it in order, are not counted; they show in short prefills."""


def drawn(number: int, formats: tuple[str, ...] = FORMATS) -> list[LayerCall]:
    draw = random.Random(number)
    calls = []
    for text in formats:
        dim, heads = draw.choice([64, 128, 256]), draw.choice([1, 2, 3, 4, 8])
        window = draw.choice([None, None, None, 1024])
        calls.append(
            LayerCall(
                parse_format(text),
                LayerGeometry(kv_heads=heads, head_dim=dim, value_dim=dim, sliding_window=window),
                heads * draw.choice([1, 3, 4]),
                draw.choice([1, 2, 4]),
                draw.choice([130, 600, times(1100, 3000)]),
                draw.choice([torch.float32, torch.float16, torch.bfloat16]),
            )
        )
    return calls


@pytest.fixture
def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path in torch alone, on a machine that has the module."""
    monkeypatch.setattr(side_codec, "encodes", lambda spec: False)
    monkeypatch.setattr(NativeRows, "is_there", staticmethod(lambda: False))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> TransientPath:
    if request.param is TransientPath.TORCH:
        request.getfixturevalue("without_module")
    return request.param


def check(call: LayerCall, path: TransientPath) -> int:
    """Compare all phases; how many were larger than the floor."""
    call = call._replace(attention="tiled" if path is TransientPath.TORCH else "auto")
    compared = 0
    names: dict[torch.dtype, FloatDtype] = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }
    dtype = names[call.dtype]
    for phase in Phase:
        measured = layer_transient(call, phase)
        predicted = layer_peak(
            call.kv_format,
            0,
            call.layer,
            call.query_heads,
            phase,
            path,
            tokens=call.tokens,
            batch=call.batch,
            dtype=dtype,
            counts_scratch=False,
        )
        assert (measured is None) == (predicted is None)
        if measured is not None and predicted is not None:
            found = measured.transient_nbytes
            assert predicted == pytest.approx(found, rel=REL[path], abs=FLOOR_NBYTES[path]), (call, phase)
            compared += max(found, predicted) > 2 * FLOOR_NBYTES[path]
    return compared


def test_prefill_flush_and_decode_of_random_shapes_are_predicted_closely(path) -> None:
    assert sum(check(call, path) for call in drawn(0, FORMATS[:12])) > 12


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, times(1, 8) + 1))
def test_many_more_shapes_are_predicted_closely(number, path) -> None:
    for call in drawn(number):
        check(call, path)


@pytest.mark.parametrize("heads", [(1, 1, 1), (2, 2, 3), (1, 64, 1), (1, 65, 2), (4, 16, 1)])
@pytest.mark.parametrize("text", ["int4-g64", "kivi-4,recent=9,sinks=2", "kv=int4:group32/had", "q4_0", "kvarn"])
def test_odd_shapes_are_predicted_on_the_kernels_path(heads, text) -> None:
    """No grouping, as many queries a head as a kernel takes and one more, windows, a basis on both sides or none."""
    kv_heads, ratio, batch = heads
    layer = LayerGeometry(kv_heads=kv_heads, head_dim=64, value_dim=64)
    check(LayerCall(parse_format(text), layer, kv_heads * ratio, batch, 333), TransientPath.KERNELS)


def test_a_decode_step_by_kernels_takes_a_small_part_of_one_in_torch() -> None:
    geometry = geometry_of("SmolLM2-135M")
    by_kernels, in_torch = (transient_peaks(geometry, parse_format("int4-g64"), 8000, 4, path) for path in PATHS)
    assert by_kernels.path is TransientPath.KERNELS
    assert by_kernels.decode_nbytes < in_torch.decode_nbytes / 20
    assert by_kernels.step_bound_nbytes == in_torch.step_bound_nbytes


@pytest.mark.parametrize("text", [*EXAMPLES, "f32", "f16", "bf16"])
def test_the_method_table_says_of_every_codec_what_kernels_read_and_encode(text) -> None:
    for name in ("keys", "values"):
        spec = getattr(parse_format(f"kv={text}"), name)
        for dim in (64, 128):
            reading = quantizer(spec).tile_reading(dim)
            found = in_place(spec)
            assert (reading is None) == (found is InPlace.NO)
            if reading is not None:
                assert (reading.basis is not None) == (found is InPlace.BASIS)
            assert kernel_reach.encodes(spec, dim) == encode.encodes(spec)


def test_the_layers_that_are_predicted_by_kernels_are_those_that_a_cache_reads_by_them() -> None:
    by_kernels = 0
    for text in [f"kv={example}" for example in EXAMPLES] + ["kivi-4", "int4-g32,recent=16,sinks=4"]:
        for kv_heads, query_heads, dim in ((2, 6, 64), (1, 80, 64), (2, 2, 40)):
            layer = LayerGeometry(kv_heads=kv_heads, head_dim=dim, value_dim=dim)
            try:
                cache = empty_layer(LayerCall(parse_format(text), layer, query_heads, 1, 8, attention="auto"))
            except GeometryError:
                continue  # the format does not serve the shape
            reads = kernel_reach.reads_layer(cache.kv_format, 0, layer, query_heads)
            assert reads == (cache.quantized_layers[0].kernel_obstacle is None), (text, layer)
            by_kernels += reads
    assert by_kernels > 20


def test_kernels_sums_of_long_texts_are_in_the_prediction_and_their_number_follows_the_ranges() -> None:
    def scratch(tokens: int, window: int | None = None) -> int:
        layer = LayerGeometry(kv_heads=1, head_dim=256, value_dim=256, sliding_window=window)
        found = [
            layer_peak(parse_format("int4-g64"), 0, layer, 64, Phase.DECODE, tokens=tokens, counts_scratch=counts)
            for counts in (True, False)
        ]
        return (found[0] or 0) - (found[1] or 0)

    one_range = 64 * (24 + 4 * 256)
    assert scratch(65_536) == pytest.approx(16 * one_range, rel=0.03)
    assert scratch(65_537) == pytest.approx(17 * one_range, rel=0.03)
    assert scratch(65_537, window=4096) == pytest.approx(2 * one_range, rel=0.03)


@pytest.mark.parametrize("text", EXAMPLES)
def test_a_method_s_row_says_what_its_codec_takes(text) -> None:
    """Each example of the table, on float32 and on 16 bits. Rows that declare nothing are bounded, not predicted."""
    spec = parse_format(f"kv={text}").keys
    working = working_nbytes(spec)
    if working is None:
        return
    values = torch.randn(2, 4, 256, 128)
    codec = quantizer(spec)
    scales = codec.calibrate(values) if spec.needs_calibration else None
    found = []
    for given in (values, values.half()):
        streams = codec.encode(given, scales).streams
        with watch_memory() as watch:
            codec.encode(given, scales)
        found.append(watch.peak.peak_nbytes / values.numel())
    with watch_memory() as watch:
        codec.decode(streams, torch.float32, scales)
    decoded = watch.peak.peak_nbytes / values.numel()
    parameters = sum(array.nbytes for name, array in streams.items() if name != "codes") / values.numel()
    encoding = working.encode_nbytes + parameters
    assert encoding == pytest.approx(found[0], rel=0.05)
    assert encoding + working.cast_nbytes == pytest.approx(found[1], rel=0.05)
    assert working.decode_nbytes == pytest.approx(decoded, rel=0.05)


def test_every_method_but_sparse_ones_declares_its_working_bytes() -> None:
    undeclared = [text for text in EXAMPLES if working_nbytes(parse_format(f"kv={text}").keys) is None]
    assert all("outliers" in text for text in undeclared)


@pytest.mark.parametrize("text", ["int4-g64", "int8-token-head", "kivi-4", "nvfp4", "q4_0"])
def test_a_call_takes_less_than_a_twentieth_of_the_store_at_8000_tokens_of_four_rows(text, without_module) -> None:
    """SmolLM2-135M. A decode step is measured; a prefill in one call is predicted."""
    geometry = geometry_of("SmolLM2-135M")
    kv_format = parse_format(text)
    stored = predict_ledger(geometry, kv_format, 8000, 4).persistent_nbytes
    call = LayerCall(kv_format, geometry.layers[0], geometry.query_heads, 4, 8000)
    for phase in (Phase.DECODE, Phase.FLUSH):
        measured = layer_transient(call, phase)
        assert measured is None or measured.transient_nbytes < stored / 20
    for path in PATHS:
        assert transient_peaks(geometry, kv_format, 8000, 4, path).largest_nbytes < stored / 10


@pytest.mark.parametrize("text", ["int4-g64", "int8-token-head", "kivi-4"])
def test_a_chunked_prefill_never_holds_more_than_the_codes_and_one_chunk_of_16_bits(text) -> None:
    """All 30 layers of SmolLM2-135M; also while a layer's chunk is worked on."""
    geometry = geometry_of("SmolLM2-135M")
    layer = geometry.layers[0]
    chunk, rows = 512, 2
    cache = QuantizedCache(synthetic_config(geometry), text, on_clip="count")
    chunk_16_bit = 2 * rows * chunk * layer.kv_heads * (layer.head_dim + layer.value_dim) * geometry.num_layers
    held = 0
    for end in range(chunk, 4 * chunk + 1, chunk):
        after = predict_ledger(geometry, cache.kv_format, end, rows).persistent_nbytes
        for index in range(geometry.num_layers):
            new = torch.randn(2, rows, layer.kv_heads, chunk, layer.head_dim)
            with torch.inference_mode(), watch_memory() as watch:
                cache.update(new[0], new[1], index)
                cache.quantized_layers[index].settle()
            assert held + watch.peak.peak_nbytes <= after + chunk_16_bit
            held += watch.peak.kept_nbytes


def test_formats_without_a_prediction_are_bounded_and_say_so(without_module) -> None:
    geometry = CacheGeometry(
        model_type="one", query_heads=4, layers=(LayerGeometry(kv_heads=2, head_dim=64, value_dim=64),)
    )
    known, sparse = parse_format("int4-g32"), parse_format("kvquant-nf4")
    assert transient_peaks(geometry, known, 1000).basis is TransientBasis.PREDICTED
    found = transient_peaks(geometry, sparse, 1000)
    assert found.basis is TransientBasis.BOUND
    assert found.decode_nbytes == workspace(sparse, geometry.layers[0], 4, chunk=1, context=1000).nbytes
    measured = layer_transient(LayerCall(sparse, geometry.layers[0], 4, 1, 1000), Phase.PREFILL)
    assert measured is not None
    assert measured.transient_nbytes <= found.prefill_nbytes


@pytest.mark.parametrize("text", ["kivi-4", "kivi-2,recent=5,sinks=3", "k=int4:channel32,v=int4:channel16", "int4-g32"])
def test_the_lengths_of_flush_and_decode_are_those_whose_last_token_does_or_does_not_complete_a_block(text) -> None:
    kv_format, layer = parse_format(text), LayerGeometry(kv_heads=1, head_dim=64, value_dim=64)
    blocks = {kv_format.keys.tokens_per_block, kv_format.values.tokens_per_block} - {1}

    def completes(length: int) -> bool:
        after = length - kv_format.sinks - kv_format.recent
        return any(after > 0 and after % block == 0 for block in blocks)

    for tokens in range(2, 300):
        lengths = range(2, tokens + 1)
        flush = max((length for length in lengths if completes(length)), default=None)
        assert call_tokens(kv_format, 0, layer, Phase.FLUSH, tokens) == flush
        decode = max((length for length in lengths if not completes(length)), default=None)
        assert call_tokens(kv_format, 0, layer, Phase.DECODE, tokens) == decode


def test_the_peak_stops_growing_with_the_context_and_needs_no_long_search() -> None:
    geometry = geometry_of("SmolLM2-135M")
    kv_format, path = parse_format("kivi-4"), TransientPath.TORCH
    short, long = (transient_peaks(geometry, kv_format, tokens, path=path) for tokens in (100_000, 900_000_000))
    assert long.decode_nbytes == pytest.approx(short.decode_nbytes, rel=0.5)
