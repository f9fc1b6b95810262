"""One clause on a share of independent units, or on how a share rose over the reference's: figure, bounds, verdict.

A unit counts once, such as a prompt that the model continues. For means over clusters of rows see `cluster_clauses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.core.slices import ALL
from kvassay.judge.cluster_clauses import Details
from kvassay.judge.judged import JudgedClause
from kvassay.judge.wording import figure, finite, first_fault, level_percent
from kvassay.stats.binary import PairedBinary, paired_noninferiority
from kvassay.stats.rates import RateBound


class UnitClause(NamedTuple):
    level: str
    """What shares a workload and its controls; the clause's full name is `level.name`."""
    name: str
    limit: float
    unit: str
    words: str
    """What the reason calls the figure."""
    planned: int | None
    """Units of the fixed design, which must be all there; None where the slice's size is not planned."""
    minimum: int
    """Units below which nothing is decided."""
    n_unit: str
    slice: str = ALL
    decisive: bool = True


class Pairs(NamedTuple):
    """Units that are sound under reference and candidate, by unit."""

    reference: Sequence[bool]
    candidate: Sequence[bool]

    @property
    def losses(self) -> int:
        return sum(before and not after for before, after in zip(self.reference, self.candidate, strict=True))

    @property
    def gains(self) -> int:
        return sum(after and not before for before, after in zip(self.reference, self.candidate, strict=True))


class _Figures(NamedTuple):
    n: int
    estimate: float
    lower: float
    upper: float
    p_met: float
    p_breached: float


def not_measured(clause: UnitClause) -> JudgedClause:
    where = f" in slice {clause.slice!r}" if clause.slice != ALL else ""
    return _judged(clause, Outcome.NOT_MEASURED, f"no {clause.n_unit} of this arm{where}", 0, None, "none", {})


def invalid(clause: UnitClause, faults: Sequence[str], n: int) -> JudgedClause:
    return _judged(clause, Outcome.INVALID_EVIDENCE, first_fault(faults), n, None, "none", {})


def judge_rate(contract: Contract, clause: UnitClause, bound: RateBound, method: str, details: Details) -> JudgedClause:
    """A share or a mean of figures in [0, 1], bounded from above."""
    found = f"{clause.words} {figure(bound.estimate)}"
    level, size = level_percent(contract.inference.alpha), f"({bound.n} {clause.n_unit})"
    limit = figure(clause.limit)
    if why := _off_design(clause, bound.n):
        outcome, reason = Outcome.INCONCLUSIVE, f"{found}, {why}"
    elif bound.upper < clause.limit:
        outcome, reason = Outcome.MET, f"{found}, {level} upper bound {figure(bound.upper)} < {limit} {size}"
    elif bound.lower > clause.limit:
        outcome, reason = Outcome.BREACHED, f"{found}, {level} lower bound {figure(bound.lower)} > {limit} {size}"
    else:
        bounds = f"{level} bounds {figure(bound.lower)} and {figure(bound.upper)}"
        outcome, reason = Outcome.INCONCLUSIVE, f"{found}, {bounds} enclose {limit} {size}"
    return _judged(clause, outcome, reason, bound.n, _Figures(*bound), method, details)


def judge_pairs(contract: Contract, clause: UnitClause, pairs: Pairs, details: Details) -> JudgedClause:
    """The share of sound units may fall by at most −`clause.limit`, which is the margin."""
    n = len(pairs.reference)
    result = paired_noninferiority(n, pairs.losses, pairs.gains, -clause.limit, contract.inference.alpha)
    found = f"{clause.words} changed by {100 * result.delta:+.2f} points"
    size = f"({result.losses} lost and {result.gains} gained of {n} {clause.n_unit})"
    level, margin = level_percent(contract.inference.alpha), f"{100 * clause.limit:.4g}"
    lower, upper = f"{100 * result.lower:+.2f}", f"{100 * result.upper:+.2f}"
    if why := _off_design(clause, n):
        outcome, reason = Outcome.INCONCLUSIVE, f"{found}, {why}"
    elif result.lower > clause.limit:
        outcome, reason = Outcome.MET, f"{found}, {level} lower bound {lower} > {margin} points {size}"
    elif result.upper < clause.limit:
        outcome, reason = Outcome.BREACHED, f"{found}, {level} upper bound {upper} < {margin} points {size}"
    else:
        bounds = f"{level} bounds {lower} and {upper} enclose {margin} points"
        outcome, reason = Outcome.INCONCLUSIVE, f"{found}, {bounds} {size}"
    figures = _Figures(n, result.delta, result.lower, result.upper, result.p_met, result.p_breached)
    method = "tango-score, exact floor"
    return _judged(clause, outcome, reason, n, figures, method, {**_pair_details(pairs, result), **details})


def _pair_details(pairs: Pairs, result: PairedBinary) -> Details:
    return {
        "losses": result.losses,
        "gains": result.gains,
        "reference_share": sum(pairs.reference) / result.n,
        "candidate_share": sum(pairs.candidate) / result.n,
    }


def _off_design(clause: UnitClause, n: int) -> str | None:
    if n < clause.minimum:
        return f"from {n} {clause.n_unit}: at least {clause.minimum} are needed"
    if clause.planned is not None and n != clause.planned:
        return (
            f"but the fixed design plans {clause.planned} {clause.n_unit} and {n} were run: "
            "another number than planned may have been chosen by its result"
        )
    return None


def _judged(
    clause: UnitClause, outcome: Outcome, reason: str, n: int, found: _Figures | None, method: str, details: Details
) -> JudgedClause:
    tested = {"p_met": found.p_met, "p_breached": found.p_breached} if found else {}
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"{clause.level}.{clause.name}",
            slice=clause.slice,
            outcome=outcome,
            reason=reason,
            unit=clause.unit,
            estimate=found.estimate if found else None,
            lower=finite(found.lower) if found else None,
            upper=finite(found.upper) if found else None,
            limit=clause.limit,
            n=n,
            n_unit=clause.n_unit,
            method=method,
            details={**tested, **details, "descriptive": not clause.decisive},
        ),
        level=clause.level,
        decisive=clause.decisive,
        p_met=found.p_met if found else None,
        p_breached=found.p_breached if found else None,
        sampled=True,
    )
