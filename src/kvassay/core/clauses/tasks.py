"""The task level: what the model must still get right."""

from __future__ import annotations

from pydantic import Field

from kvassay.core.clauses.fields import Count, Margin, Section


class TaskBound(Section):
    """Paired non-inferiority of a task's accuracy: the loss may be at most `margin` (0.02 = two points)."""

    margin: Margin
    ref_floor: float = Field(default=0.5, ge=0, le=1, allow_inf_nan=False)
    items: Count = Field(default=64, ge=1)
    context_lines: int = Field(default=24, ge=2, le=1000)
    slices: tuple[str, ...] = ()
