"""The kernels' benchmark in small: every arm computes attention over the same numbers, or says why it did not run."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.kernels import ggml
from benchmarks.kernels.arm import BITS_4, Arm, ArmKind
from benchmarks.kernels.arms import ARMS
from benchmarks.kernels.goals import INT4, LLAMA_CPP_INT4, goal_lines
from benchmarks.kernels.inputs import Inputs, Shape, draw
from benchmarks.kernels.measure import measure, prepare
from benchmarks.kernels.table import markdown

SMALL = Shape(8, 2, 64, 320)
ENGINES = ("ONNX Runtime", "llama.cpp", "OpenVINO")


@pytest.fixture(scope="module")
def small() -> Inputs:
    return draw(SMALL)


def test_the_answer_is_attention_of_each_query_head_with_its_kv_head(small) -> None:
    ratio = SMALL.query_heads // SMALL.kv_heads
    for head in range(SMALL.query_heads):
        keys, values = (side[0, head // ratio].double() for side in (small.keys, small.values))
        weights = torch.softmax(keys @ small.query[0, head, 0].double() / 8, 0)
        assert torch.allclose(small.answer[head], weights @ values)
    assert small.error_of(small.answer.float() * 1.5) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ARMS)
def test_b66_an_arm_computes_attention_or_says_what_is_missing(name, small) -> None:
    _, rows = prepare(small, {name: ARMS[name]}, 1)
    row = rows[name]
    if "did_not_run" in row:
        assert name.startswith(ENGINES)
        assert "is not installed: pip install" in row["did_not_run"]
    else:
        assert row["error"] <= ARMS[name].most_error
        assert row["read_mib"] > 0


def test_b66_an_arm_that_computes_something_else_is_not_timed(small) -> None:
    heads_in_wrong_order = ArmKind(lambda inputs, threads: Arm(lambda: inputs.answer.flip(0), 1, "none"), BITS_4)
    arms, rows = prepare(small, {"wrong": heads_in_wrong_order}, 1)
    assert not arms
    assert "away from attention in float64, expected at most 0.5" in rows["wrong"]["did_not_run"]
    nothing = ArmKind(lambda inputs, threads: Arm(lambda: inputs.answer * torch.nan, 1, "none"), BITS_4)
    assert "did_not_run" in prepare(small, {"nan": nothing}, 1)[1]["nan"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_is_not_installed_is_a_line_that_says_so(engine, small, monkeypatch) -> None:
    for package in ("onnxruntime", "openvino", "xllamacpp"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delenv("GGML_LIBRARY", raising=False)
    ggml._library.cache_clear()
    names = [name for name in ARMS if name.startswith(engine)]
    arms, rows = prepare(small, {name: ARMS[name] for name in names}, 1)
    assert not arms
    table = markdown(list(rows.values()))
    assert table.count("is not installed: pip install") == len(names) > 2
    assert "Computed by nobody." in table
    # Goals of those arms are open, and not met.
    figures = {"median_us": 1.0, "of_roof": 1.0, "shape": "32x8x128", "context": 4096, "threads": 1}
    missing = [{**row, "shape": "32x8x128", "context": 4096} for row in rows.values()]
    lines = goal_lines([{"arm": INT4, **figures}, *missing])
    assert all("not measured" in line for line in lines if "ONNX" in line or "llama.cpp" in line)


def test_arms_take_turns_and_rows_hold_wall_and_cpu_time() -> None:
    names = ["kvassay int8-token-head", "torch f32, q viewed by KV head"]
    rows = measure(SMALL, {name: ARMS[name] for name in names}, 3, 2)
    assert [row["arm"] for row in rows] == names
    assert [row["n"] for row in rows] == [3, 3]
    for row in rows:
        assert row["median_us"] == row["wall_us"] > 0  # More than one thread is compared by wall time.
        assert row["low_us"] <= row["median_us"] <= row["high_us"]
        assert row["cpu_us"] > 0
    assert rows[0]["times_first"] == 1
    one = measure(SMALL, {names[0]: ARMS[names[0]]}, 1, 1)[0]
    assert one["median_us"] == one["cpu_us"]
    assert "| 8x2x64, 320, 2 | kvassay int8-token-head |" in markdown(rows)


def test_goals_name_arms_that_exist() -> None:
    from benchmarks.kernels import goals

    named = [goals.INT4, goals.INT8, goals.KIVI2, goals.BF16, LLAMA_CPP_INT4, *goals.ONNX_INT8, *goals.BEST_TORCH]
    assert set(named) <= set(ARMS)
    best, other = goals.ONNX_INT8
    rows = [
        {"arm": arm, "median_us": us, "of_roof": 0.5, "shape": "32x8x128", "context": 32768, "threads": 1}
        for arm, us in ((goals.INT4, 2), (goals.INT8, 4), (LLAMA_CPP_INT4, 50), (best, 18), (other, 20))
    ]
    lines = goal_lines(rows)
    assert any("times q4_0 of llama.cpp, head-contiguous | 20.00 | 25.00, met" in line for line in lines)
    assert any("times the best int8 of ONNX Runtime | 4.50 | 4.50, met" in line for line in lines)
