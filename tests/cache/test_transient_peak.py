"""The transient peak of a layer's call: predicted without torch, against what the allocator hands out."""

from __future__ import annotations

import random

import pytest
import torch

from kvassay.cache import QuantizedCache, side_codec
from kvassay.cache.native_rows import NativeRows
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.ledger import predict_ledger
from kvassay.core.method_table import TABLE
from kvassay.core.model_source import geometry_of
from kvassay.core.spec import FloatDtype
from kvassay.core.transient_peak import Phase, TransientBasis, call_tokens, layer_peak, transient_peaks
from kvassay.core.transient_side import working_nbytes
from kvassay.core.workspace import workspace
from kvassay.formats import quantizer
from kvassay.measures.cache_fill import synthetic_config
from kvassay.measures.layer_transient import LayerCall, layer_transient
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
SMALLEST_NBYTES = 1 << 17
"""Below it the numbers that operators wrap weigh more than a tenth."""
EXAMPLES = [example for row in TABLE for example in row.examples if row.name != "float"]


REL = 0.15
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


@pytest.fixture(autouse=True)
def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted is what torch takes; compiled kernels take less."""
    monkeypatch.setattr(side_codec, "encodes", lambda spec: False)
    monkeypatch.setattr(NativeRows, "is_there", staticmethod(lambda: False))


def check(call: LayerCall) -> int:
    """Compare all phases; how many were large enough."""
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
            call.kv_format, 0, call.layer, call.query_heads, phase, tokens=call.tokens, batch=call.batch, dtype=dtype
        )
        assert (measured is None) == (predicted is None)
        if (
            measured is not None
            and predicted is not None
            and max(measured.transient_nbytes, predicted) >= SMALLEST_NBYTES
        ):
            assert predicted == pytest.approx(measured.transient_nbytes, rel=REL), (call, phase)
            compared += 1
    return compared


def test_prefill_flush_and_decode_of_random_shapes_are_predicted_closely() -> None:
    assert sum(check(call) for call in drawn(0, FORMATS[:12])) > 12


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, times(1, 8) + 1))
def test_many_more_shapes_are_predicted_closely(number) -> None:
    for call in drawn(number):
        check(call)


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
def test_a_call_takes_less_than_a_twentieth_of_the_store_at_8000_tokens_of_four_rows(text) -> None:
    """SmolLM2-135M. A decode step is measured; a prefill in one call is predicted."""
    geometry = geometry_of("SmolLM2-135M")
    kv_format = parse_format(text)
    stored = predict_ledger(geometry, kv_format, 8000, 4).persistent_nbytes
    call = LayerCall(kv_format, geometry.layers[0], geometry.query_heads, 4, 8000)
    for phase in (Phase.DECODE, Phase.FLUSH):
        measured = layer_transient(call, phase)
        assert measured is None or measured.transient_nbytes < stored / 20
    assert transient_peaks(geometry, kv_format, 8000, 4).largest_nbytes < stored / 10


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


def test_formats_without_a_prediction_are_bounded_and_say_so() -> None:
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
    short, long = (transient_peaks(geometry, parse_format("kivi-4"), tokens) for tokens in (100_000, 900_000_000))
    assert long.decode_nbytes == pytest.approx(short.decode_nbytes, rel=0.5)
