"""Entries of a plan: what a clause is expected to show, what n decides it, and with what chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.core.clauses.decision import Inference
from kvassay.stats.planning import documents_power, pairs_power, plan_documents, plan_pairs
from kvassay.stats.rate_planning import plan_rate, rate_power
from kvassay.stats.sequential_power import MOST_PAIRS, plan_sequential


class PairedCounts(NamedTuple):
    n: int
    losses: int
    gains: int


class ClausePlan(NamedTuple):
    """What the contract says of one clause and slice."""

    clause: str
    limit: float
    unit: str
    n_planned: int
    n_unit: str
    slice: str = "all"


def cluster_entry(inference: Inference, arm: PlannedArm, clause: ClausePlan, means: Sequence[float]) -> dict[str, Any]:
    """Of a bound on a mean or a share, from one figure a pilot document or prompt."""
    if len(means) < 2:
        found = f"the pilot has {len(means)} {clause.n_unit} of this slice, which tell no spread"
        return _entry(arm, clause, means[0] if means else None, None, None, found)
    mean, variation = _spread(means)
    if variation is None:
        return _entry(arm, clause, mean, None, None, "the pilot saw no difference at all, so it tells no spread")
    # Towards BREACHED the same formula holds with both signs turned.
    sign = 1 if mean < clause.limit else -1
    scaled, limit = sign * mean, sign * clause.limit
    needed = plan_documents(scaled, variation, limit, inference.alpha, inference.power).documents
    power = documents_power(clause.n_planned, scaled, variation, limit, inference.alpha)
    assumption = f"pilot mean {mean:.3g}, CV {variation:.2f} between {clause.n_unit}, towards {_towards(sign > 0)}"
    return _entry(arm, clause, mean, needed, power, assumption)


def rate_entry(inference: Inference, arm: PlannedArm, clause: ClausePlan, events: int, n: int) -> dict[str, Any]:
    """Of a bound on the share of independent units, `events` of `n` in the pilot."""
    # Laplace's rule: a pilot of a few units without an event does not show that there is none.
    rate = (events + 1) / (n + 2)
    needed = plan_rate(rate, clause.limit, inference.alpha, inference.power)
    power = rate_power(clause.n_planned, rate, clause.limit, inference.alpha)
    direction = "on the limit, which no number decides" if power is None else f"towards {_towards(rate < clause.limit)}"
    assumption = f"rate {rate:.2f} ({events} of {n} in the pilot), {direction}"
    return _entry(arm, clause, rate, needed, power, assumption)


def pairs_entry(inference: Inference, arm: PlannedArm, clause: ClausePlan, counts: PairedCounts) -> dict[str, Any]:
    """Of a paired task: `clause.limit` is minus the margin."""
    margin = -clause.limit
    # Laplace's rule: a pilot of a few items that saw no discordance does not show that there is none.
    discordance = (counts.losses + counts.gains + 1) / (counts.n + 2)
    delta = (counts.gains - counts.losses) / (counts.n + 2)
    if inference.design == "sequential":
        return _sequential_entry(inference, arm, clause, discordance, delta, counts.n)
    plan = plan_pairs(margin, discordance, delta, inference.alpha, inference.power)
    inside, on_margin = margin + delta > 0, margin + delta == 0
    power = None if on_margin else pairs_power(clause.n_planned, margin, discordance, delta, inference.alpha)
    direction = "on the margin, which no number of contexts decides" if on_margin else f"towards {_towards(inside)}"
    assumption = (
        f"discordance {discordance:.2f}, difference {delta:+.2f} (pilot of {counts.n}), "
        f"{direction}; without any discordant pair {plan.undiscordant_exact}"
    )
    return _entry(arm, clause, delta, plan.pairs, power, assumption)


def _sequential_entry(
    inference: Inference, arm: PlannedArm, clause: ClausePlan, discordance: float, delta: float, pilot: int
) -> dict[str, Any]:
    margin = -clause.limit
    plan = plan_sequential(clause.n_planned, margin, discordance, delta, inference.alpha, inference.power)
    half = f"half of such runs decide within {plan.median}" if plan.median else f"few decide within {MOST_PAIRS}"
    assumption = (
        f"discordance {discordance:.2f}, difference {delta:+.2f} (pilot of {pilot}), towards "
        f"{_towards(margin + delta > 0)}; a look every {inference.look_every} {clause.n_unit}, {half}"
    )
    return _entry(arm, clause, delta, plan.pairs, plan.power, assumption)


def _entry(
    arm: PlannedArm,
    clause: ClausePlan,
    expected: float | None,
    needed: int | None,
    power: float | None,
    assumption: str,
) -> dict[str, Any]:
    return {
        "arm": arm.name,
        "role": arm.role.value,
        "clause": clause.clause,
        "slice": clause.slice,
        "unit": clause.unit,
        "expected": expected,
        "limit": clause.limit,
        "n_planned": clause.n_planned,
        "n_needed": needed,
        "n_unit": clause.n_unit,
        "power": power,
        "assumption": assumption,
    }


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and coefficient of variation; None for the latter where the mean is zero."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance) / abs(mean) if mean else None


def _towards(inside: bool) -> str:
    return "MET" if inside else "BREACHED"
