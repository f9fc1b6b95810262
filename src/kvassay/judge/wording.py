"""Figures as the reasons print them. The verdict's own fields keep every digit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvassay.core.records import Outcome


def figure(value: float) -> str:
    """Four significant digits, without trailing zeros."""
    return f"{value:.4g}"


def level_percent(alpha: float) -> str:
    return f"{100 * (1 - alpha):g}%"


def counted(count: int, unit: str) -> str:
    """`1 document`, `24 documents`."""
    return f"{count} {unit.removesuffix('s') if count == 1 else unit}"


def reference_right(share: float, items: int) -> str:
    """Both as a number of items and as a share: "1 of 60 items" must not mean all of them."""
    return f"the reference is right in {round(share * items)} of {counted(items, 'items')} ({figure(share)})"


def finite(value: float | None) -> float | None:
    """None for an infinite bound: JSON has no infinity, and such a side is not bounded at all."""
    return value if value is not None and math.isfinite(value) else None


def first_fault(faults: Sequence[str]) -> str:
    """The first fault, and how many more there are; empty if none."""
    if not faults:
        return ""
    return faults[0] + (f" (and {counted(len(faults) - 1, 'further faults')})" if len(faults) > 1 else "")


def outcome_words(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def listed(names: list[str] | tuple[str, ...], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
