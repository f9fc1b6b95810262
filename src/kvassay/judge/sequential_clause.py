"""One task clause of the sequential design: from pairs in the order of the run to outcome, figures and reason."""

from __future__ import annotations

from typing import NamedTuple

from kvassay.core.records import Outcome
from kvassay.judge.wording import figure, level_percent
from kvassay.stats.eprocess import SequentialPairs

METHOD = "betting e-process"


class Decided(NamedTuple):
    outcome: Outcome
    reason: str


def decide(task: str, result: SequentialPairs, planned: int) -> Decided:
    """MET or BREACHED where the wealth of that side was the first to reach one over alpha; else INCONCLUSIVE."""
    found = f"{task} accuracy changed by {100 * result.delta:+.2f} points"
    size = f"({result.losses} lost and {result.gains} gained of {result.n} contexts, at most {planned})"
    level, margin = level_percent(result.alpha), f"{-100 * result.margin:.4g}"
    lower, upper = f"{100 * result.lower:+.2f}", f"{100 * result.upper:+.2f}"
    at = f"decided after {result.decided_at} contexts, anytime-valid"
    if result.decision == "met":
        return Decided(
            Outcome.MET, f"{found}, {at} p = {figure(result.p_met)} against a loss of {margin} points or more {size}"
        )
    if result.decision == "breached":
        return Decided(
            Outcome.BREACHED,
            f"{found}, {at} p = {figure(result.p_breached)} against a loss of {margin} points or less {size}",
        )
    return Decided(
        Outcome.INCONCLUSIVE,
        f"{found}, {level} bounds of the confidence sequence {lower} and {upper} enclose {margin} points {size}",
    )
