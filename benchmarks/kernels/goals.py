"""What is asked of the kernels, and what a run found: a line a goal.

Goals are for 32 query and 8 KV heads of 128; other shapes are held to 70 percent of the ratios. A goal whose arms were
not in the run is *not measured*, never met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

INT4, INT8, KIVI2, BF16 = "kvassay int4-g64", "kvassay int8-token-head", "kvassay kivi-2", "kvassay bf16"
ONNX_INT8 = ("ONNX Runtime int8 by tensor", "ONNX Runtime int8 by channel")
LLAMA_CPP_INT4 = "llama.cpp q4_0, head-contiguous"
BEST_TORCH = ("torch bf16, q viewed by KV head", "torch bf16, q viewed, large pages")
MAIN_SHAPE, OTHER_SHAPES_SHARE = "32x8x128", 0.7


class Goal(NamedTuple):
    says: str
    least: float
    found: Callable[[dict[str, dict[str, Any]]], float | None]
    """The figure from the rows of one shape, context and number of threads, by arm; None where an arm is missing."""
    contexts: Sequence[int] = ()
    """Where it is asked; empty for all."""
    threads: int = 1


def times(arm: str, *others: str) -> Callable[[dict[str, dict[str, Any]]], float | None]:
    """How often faster an arm is than the fastest of others."""

    def found(rows: dict[str, dict[str, Any]]) -> float | None:
        there = [rows[other]["median_us"] for other in others if other in rows]
        return min(there) / rows[arm]["median_us"] if there and arm in rows else None

    return found


def of_roof(arm: str) -> Callable[[dict[str, dict[str, Any]]], float | None]:
    return lambda rows: rows[arm]["of_roof"] if arm in rows else None


GOALS = (
    Goal("int4-g64, times the best torch bf16", 6, times(INT4, *BEST_TORCH)),
    Goal("int4-g64, times torch bf16 with enable_gqa", 50, times(INT4, "torch bf16, enable_gqa")),
    Goal("int4-g64, times decoding it and SDPA", 25, times(INT4, "int4-g64 decoded, then torch f32"), (4096,)),
    Goal("int4-g64, times decoding it and SDPA", 80, times(INT4, "int4-g64 decoded, then torch f32"), (32768, 131072)),
    Goal("int8-token-head, times the best torch bf16", 4, times(INT8, *BEST_TORCH)),
    Goal("int8-token-head, times the best int8 of ONNX Runtime", 4.5, times(INT8, *ONNX_INT8)),
    Goal("int4-g64, times q4_0 of llama.cpp, head-contiguous", 20, times(INT4, LLAMA_CPP_INT4)),
    Goal("int4-g64, times our bf16", 2.7, times(INT4, BF16)),
    Goal("int8-token-head, times our bf16", 1.7, times(INT8, BF16)),
    Goal("kivi-2, times int4-g64", 1 / 1.05, times(KIVI2, INT4)),
    Goal("int8-token-head, part of the roof, one thread", 0.65, of_roof(INT8), (32768,)),
    Goal("int4-g64, part of the roof, one thread", 0.52, of_roof(INT4), (32768,)),
    Goal("int8-token-head, part of the roof, two threads", 0.58, of_roof(INT8), (32768,), 2),
    Goal("int4-g64, part of the roof, two threads", 0.45, of_roof(INT4), (32768,), 2),
)


def goal_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A Markdown table over all shapes, contexts and threads of the rows."""
    cells: dict[tuple[str, int, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        arms = cells.setdefault((row["shape"], row["context"], row["threads"]), {})
        if "did_not_run" not in row:
            arms[row["arm"]] = row
    lines = ["| heads, context, threads | goal | asked | found |", "|---|---|---|---|"]
    for (shape, context, threads), arms in cells.items():
        lines += (f"| {shape}, {context:,}, {threads} | {line}" for line in _lines(shape, context, threads, arms))
    return lines


def _lines(shape: str, context: int, threads: int, arms: dict[str, dict[str, Any]]) -> Iterator[str]:
    for goal in GOALS:
        if (goal.contexts and context not in goal.contexts) or goal.threads != threads:
            continue
        is_ratio = "roof" not in goal.says
        least = goal.least if shape == MAIN_SHAPE or not is_ratio else goal.least * OTHER_SHAPES_SHARE
        found = goal.found(arms)
        said = "not measured" if found is None else f"{found:.2f}, {'met' if found >= least else 'missed'}"
        yield f"{goal.says} | {least:.2f} | {said} |"
