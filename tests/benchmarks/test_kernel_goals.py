"""What the kernels' benchmark says of its goals."""

from __future__ import annotations

from benchmarks.kernels.goals import BF16, INT4, INT8, goal_lines


def row(arm: str, median_us: float, of_roof: float = 0.5, shape: str = "32x8x128", threads: int = 1) -> dict:
    return {
        "arm": arm,
        "median_us": median_us,
        "of_roof": of_roof,
        "shape": shape,
        "context": 32768,
        "threads": threads,
    }


def line(lines: list[str], says: str) -> str:
    return next(each for each in lines if f"| {says}" in each)


def test_a_goal_is_met_missed_or_not_measured() -> None:
    lines = goal_lines([row(INT4, 10, 0.53), row(INT8, 20, 0.6), row(BF16, 30)])
    assert "| 2.70 | 3.00, met |" in line(lines, "int4-g64, times our bf16")
    assert "| 1.70 | 1.50, missed |" in line(lines, "int8-token-head, times our bf16")
    assert "| 0.52 | 0.53, met |" in line(lines, "int4-g64, part of the roof, one thread")
    assert "not measured" in line(lines, "int4-g64, times the best torch bf16")
    assert not any("two threads" in each for each in lines)


def test_the_best_torch_is_the_fastest_one() -> None:
    torch_rows = [row("torch bf16, q viewed by KV head", 90), row("torch bf16, q viewed, large pages", 50)]
    found = line(goal_lines([row(INT4, 10), *torch_rows]), "int4-g64, times the best torch bf16")
    assert "| 6.00 | 5.00, missed |" in found


def test_other_shapes_are_held_to_a_part_of_ratios_and_to_all_of_the_roof() -> None:
    shape = "9x3x64"
    lines = goal_lines([row(INT4, 10, 0.5, shape), row(BF16, 20, 0.5, shape)])
    assert "| 1.89 | 2.00, met |" in line(lines, "int4-g64, times our bf16")
    assert "| 0.52 | 0.50, missed |" in line(lines, "int4-g64, part of the roof, one thread")
