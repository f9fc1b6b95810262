"""The bench shows the codec's own codes, scales and bytes, and the errors of experiment and numeric level."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import kvassay
from kvassay.errors import FormatError, ModelError
from kvassay.experiments.attention_error_inputs import draw_inputs
from kvassay.experiments.attention_error_plan import Cell
from kvassay.lab.bench import run_bench
from kvassay.lab.bench_settings import BenchSettings
from kvassay.lab.capture import Captured, CaptureDesk, capture

ROW = {"key_scales": "token-head", "value_scales": "token-head"}
TENSOR = {"key_scales": "tensor", "value_scales": "tensor"}


def bench(**settings) -> dict:
    return run_bench(BenchSettings(**settings), None)


def figure(found: dict, name: str, kind: str = "max_abs") -> float:
    return next(row[kind] for row in found["figures"] if row["name"] == name)


# The exercise of the tutorial.


def test_r98_zeros_take_scale_one_and_have_no_error() -> None:
    found = bench(source="zeros", tokens=64, **TENSOR)
    assert found["side"]["scales"] | {"shown": []} == {
        "count": 1, "dtype": "float32", "smallest": 1.0, "largest": 1.0, "changed": None, "shown_every": 1, "shown": []
    }  # fmt: skip
    assert figure(found, "output") == 0.0
    assert figure(found, "array K", "relative") == 0.0


@pytest.mark.parametrize(("scales", "count"), [(TENSOR, 1), (ROW, 64)])
def test_r99_one_enlarged_element_changes_one_scale(scales, count) -> None:
    side = bench(source="zeros", tokens=64, outlier=40, **scales)["side"]
    assert (side["scales"]["count"], side["scales"]["changed"]) == (count, 1)
    assert side["scales"]["smallest"] == float(np.float32(40 / 127))
    assert side["scales"]["largest"] == (1.0 if count > 1 else side["scales"]["smallest"])


def test_r77_a_row_scale_isolates_other_rows_and_a_tensor_scale_none() -> None:
    tensor, row = (bench(tokens=64, outlier=40, **scales)["side"] for scales in (TENSOR, ROW))
    assert tensor["rows_with_changed_codes"] == 64
    assert row["rows_with_changed_codes"] == 1
    assert tensor["levels_used"] < 0.1 * row["levels_used"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [(TENSOR, 3.9592), (ROW, 4.1356), ({"key_scales": "channel"}, 0.25391), ({"sinks": 1}, 0.015477)],
)
def test_r92_the_worst_cell_is_the_experiments(changes, error) -> None:
    found = bench(seed=41, tokens=1024, outlier=40, **changes)
    assert figure(found, "output") == pytest.approx(error, rel=1e-4)


def test_r91_the_tutorials_mild_rows() -> None:
    cells = [(TENSOR, 1, 0.00437), (ROW, 1, 0.00247), (TENSOR, 40, 0.04396), (ROW, 40, 0.04295)]
    for scales, outlier, error in cells:
        assert figure(bench(seed=7, tokens=256, outlier=outlier, **scales), "output") == pytest.approx(error, abs=6e-6)


def test_r78_r81_keys_alone_and_values_alone() -> None:
    found = bench(seed=41, tokens=1024, outlier=40, **ROW)
    assert figure(found, "output, K alone") == pytest.approx(4.1358, abs=1e-4)
    assert figure(found, "output, V alone") == pytest.approx(0.2539, abs=1e-4)


# What is shown is what is stored.


def test_r85_bytes_are_the_storages_by_owner() -> None:
    mixed = {"key_bits": 3, "value_bits": 4, "key_scales": "channel-group", "value_scales": "group"}
    found = bench(tokens=1024, width=128, recent=32, sinks=4, exact="f16", **mixed)
    counted = found["bytes"]
    assert sum(counted["keys"].values()) + sum(counted["values"].values()) == counted["total"]
    keys, values = (torch.zeros(1, 1, 1024, 128) for _ in range(2))
    assert counted["total"] == kvassay.format(found["format"]).encode(keys, values).nbytes
    assert set(counted["keys"]) == {"codes", "scales", "zero_points", "window", "sinks"}
    assert counted["bits_per_value"] == 8 * counted["total"] / (2 * 1024 * 128)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_decode_to_what_attention_read(bits) -> None:
    """Codes x scale + minimum, by hand, against the product's own decoded values."""
    name = f"kv=int{bits}:token-head,exact=f32"
    found = bench(tokens=16, key_bits=bits, value_bits=bits, seed=19)
    side = found["side"]
    keys = torch.from_numpy(np.random.default_rng(19).standard_normal((8 + 16, 32))[8:])[None, None]
    fmt = kvassay.format(name)
    packed = fmt.encode(keys, keys)
    read = fmt.decode(packed, torch.float64).keys[0, 0]
    prefix = next(each.block_prefix for each in packed.sides if each.is_keys)
    scales = packed.arrays[f"{prefix}scales"]
    rows = np.array(side["codes"]) * scales.flatten().double().numpy()[: len(side["codes"]), None]
    if bits < 8:
        minimums = packed.arrays[f"{prefix}minimums"]
        rows = rows + minimums.flatten().double().numpy()[: len(side["codes"]), None]
    np.testing.assert_allclose(rows, read[: rows.shape[0], : rows.shape[1]].numpy(), rtol=1e-12, atol=1e-12)
    assert found["format"] == kvassay.parse_format(name).name
    assert (side["lowest"], side["highest"]) == ((-127, 127) if bits == 8 else (0, 2**bits - 1))


def test_the_histogram_counts_every_value_once() -> None:
    for bits in (2, 4, 8):
        bars = bench(tokens=256, key_bits=bits, key_scales="token-head")["side"]["histogram"]
        assert sum(bar["count"] for bar in bars) == 256 * 32
        assert len(bars) <= 64


def test_errors_by_token_name_the_row_of_the_outlier() -> None:
    bars = bench(tokens=1024, outlier=40, seed=41, **ROW)["tokens_error"]
    assert max(bars, key=lambda bar: bar["keys"])["first"] == 0
    assert bars[0]["keys"] > 5 * bars[1]["keys"]
    assert (bars[0]["first"], bars[-1]["last"], len(bars)) == (0, 1023, 64)


def test_any_format_by_name_and_those_without_integer_codes() -> None:
    for name in ("kivi-4,recent=32", "q4_0", "f16", "fp8-e4m3-tensor"):
        kv_format = kvassay.parse_format(name)
        found = bench(format=name, key_bits=1)
        assert found["digest"] == kv_format.digest[:12]
        assert (found["side"]["codes"] is None) == (kv_format.keys.method != "int")
        assert found["side"]["codes"] is not None or len(bytes.fromhex(found["side"]["raw"])) == 64


def test_everything_kept_exact_has_no_codes_and_says_so() -> None:
    side = bench(tokens=64, recent=64)["side"]
    assert side["codes"] is None
    assert side["coded_tokens"] == 0
    assert side["scales"] is None


def test_r05_drawn_arrays_of_the_experiments_sizes_are_the_experiments() -> None:
    found = bench(seed=7, tokens=64)
    expected = draw_inputs(7)[Cell(7, 64, "normal")].keys
    np.testing.assert_array_equal(np.array(found["side"]["values"]), expected[:12, :16])


def test_a_rotation_over_static_channels_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="a rotation mixes the channels"):
        bench(key_scales="channel", rotate=True)


# A real model.


@pytest.fixture(scope="module")
def captured(tiny_folder, texts) -> Captured:
    stages: list[str] = []
    found = capture(str(tiny_folder), stages.append, corpus=f"path:{texts}")
    assert "running the text" in stages
    return found


def test_r100_captured_arrays_are_the_models_and_errors_the_numeric_levels(captured) -> None:
    found = run_bench(BenchSettings(source="captured", layer=1, recent=16), captured)
    assert found["tokens"] == captured.tokens == 256
    assert "Captured from" in found["label"]
    errors = {row["name"]: row["max_abs"] for row in found["figures"]}
    assert all(math.isfinite(error) for error in errors.values())
    assert 0 < errors["output, V alone"] < 0.1
    head = captured.head(1, 0)
    np.testing.assert_array_equal(found["side"]["values"], head.keys[0, 0, :12, :16].double().numpy())
    # One 8-bit grid a token: no element is off by more than half a step of the largest scale.
    assert errors["array K"] <= 0.5 * found["side"]["scales"]["largest"] * 1.001


def test_windows_that_hold_everything_leave_a_captured_output_as_it_is(captured) -> None:
    found = run_bench(BenchSettings(source="captured", recent=512), captured)
    assert figure(found, "output") < 1e-6  # float32 arrays, kept in float32


def test_a_layer_or_head_that_is_not_there_is_named(captured) -> None:
    with pytest.raises(ModelError, match="has layers 0 to 1, found 7"):
        run_bench(BenchSettings(source="captured", layer=7), captured)
    with pytest.raises(ModelError, match="KV heads 0 to"):
        run_bench(BenchSettings(source="captured", head=99), captured)


def test_a_capture_that_fails_says_why_and_can_be_tried_again() -> None:
    calls: list[str] = []

    def take(model: str, _say) -> Captured:
        calls.append(model)
        raise ModelError("no such model")

    desk = CaptureDesk("m", take)
    assert desk.state()["state"] == "none"
    for times in (1, 2):
        desk.start()
        desk._thread.join(30)  # pyright: ignore[reportOptionalMemberAccess]
        assert desk.state() == {"state": "failed", "model": "m", "error": "no such model"}
        assert len(calls) == times
