"""One clause on a mean or a share over clusters: figure, bounds, verdict. The levels say what a row is and what counts.

The cluster is what was drawn independently: a document, or a prompt that the model continues.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.core.slices import ALL
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rows import Floats, Integers
from kvassay.judge.wording import counted, figure, finite, first_fault, level_percent
from kvassay.stats.cluster import ClusterBound, cluster_bound, design_effect, document_sums
from kvassay.stats.distributions import binomial_upper_bound
from kvassay.stats.exceedance import ExceedanceBound, exceedance_bound

Details = dict[str, float | int | str | bool | None]


class ClusterClause(NamedTuple):
    """A bound from above on the mean of a figure over rows, or on the share of rows that exceed `threshold`."""

    level: str
    """What shares a workload and its controls; the clause's full name is `level.name`."""
    name: str
    limit: float
    unit: str
    words: str
    """What the reason calls the figure."""
    planned: int | None
    """Clusters of the fixed design, which must be all there; None where the slice's size is not planned."""
    minimum: int
    """Clusters below which there is no interval."""
    cluster_unit: str = "documents"
    row_unit: str = "tokens"
    threshold: float | None = None
    slice: str = ALL
    decisive: bool = True
    binary: bool = False
    """The figure is 0 or 1 by its nature: none comes near `threshold` without exceeding it."""


class ClusterRows(NamedTuple):
    """Rows in order of clusters: each row's figure, and the code of its cluster. Both `[rows]`."""

    values: Floats
    clusters: Integers

    @property
    def num_clusters(self) -> int:
        return int(np.count_nonzero(np.diff(self.clusters, prepend=-1)))


def judge_clusters(
    contract: Contract,
    clause: ClusterClause,
    rows: ClusterRows | None,
    faults: tuple[str, ...] | list[str] = (),
    details: Details | None = None,
) -> JudgedClause:
    """The verdict of one clause. `faults` are reasons why the rows may not be used; `rows` None means none exist."""
    if rows is None:
        reason = f"no {clause.row_unit.removesuffix('s')} rows of this arm"
        if clause.slice != ALL:
            reason += f" in slice {clause.slice!r}"
        return _judged(clause, Outcome.NOT_MEASURED, reason, None, "none", 0, {})
    unusable = int(np.count_nonzero(~np.isfinite(rows.values)))
    missing = [f"{clause.words} is missing or not finite in {unusable} of {len(rows.values)} rows"] if unusable else []
    if fault := first_fault(list(faults) or missing):
        return _judged(clause, Outcome.INVALID_EVIDENCE, fault, None, "none", rows.num_clusters, {})
    bound, method, found = _bound(contract, clause, rows)
    outcome, reason = _decide(contract, clause, bound)
    return _judged(clause, outcome, reason, bound, method, bound.documents, {**found, **(details or {})})


def _bound(
    contract: Contract, clause: ClusterClause, rows: ClusterRows
) -> tuple[ClusterBound | ExceedanceBound, str, Details]:
    inference = contract.inference
    settings = (inference.alpha, inference.bootstrap_replicates, inference.seed, clause.minimum)
    details: Details = {}
    if clause.threshold is not None:
        bound = exceedance_bound(rows.values, rows.clusters, clause.threshold, clause.limit, *settings, clause.binary)
        method: str = bound.method
        effect = design_effect((rows.values > clause.threshold).astype(np.float64), rows.clusters)
        details |= {"events": bound.events, "documents_with_events": bound.documents_with_events}
    else:
        sums, counts = document_sums(rows.values, rows.clusters)
        bound = cluster_bound(sums, counts, clause.limit, *settings)
        method = "bootstrap-t, lognormal floor" if bound.floored else "bootstrap-t"
        effect = design_effect(rows.values, rows.clusters)
        details["degenerate"] = bound.degenerate
    details |= {
        clause.row_unit: bound.tokens,
        "se": bound.se,
        "design_effect": effect,
        "p_met": bound.p_met,
        "p_breached": bound.p_breached,
        # A kind of document rarer than this may be missing from the sample altogether.
        "unseen_document_share": binomial_upper_bound(0, bound.documents, inference.alpha),
    }
    return bound, method, details


def _decide(contract: Contract, clause: ClusterClause, bound: ClusterBound | ExceedanceBound) -> tuple[Outcome, str]:
    """MET if the whole bound lies below the limit, BREACHED if above; INCONCLUSIVE off the planned design."""
    unit = f" {clause.unit}" if clause.unit != "share" else ""
    rows = "" if clause.row_unit == clause.cluster_unit else f", {counted(bound.tokens, clause.row_unit)}"
    size = f"({counted(bound.documents, clause.cluster_unit)}{rows})"
    found = f"{clause.words} {figure(bound.estimate)}{unit}"
    if bound.lower is None or bound.upper is None:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, without bounds: at least {clause.minimum} {clause.cluster_unit} are needed {size}",
        )
    if clause.planned is not None and bound.documents != clause.planned:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, but the fixed design plans {clause.planned} {clause.cluster_unit} and {bound.documents} were "
            "scored: another number than planned may have been chosen by its result",
        )
    if isinstance(bound, ClusterBound) and bound.degenerate and bound.estimate != 0:
        singular = clause.cluster_unit.removesuffix("s")
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, the same in every {singular}: without any spread there is no interval {size}",
        )
    level = level_percent(contract.inference.alpha)
    if bound.upper < clause.limit:
        zero = isinstance(bound, ClusterBound) and bound.degenerate
        every = f"exactly zero in every {clause.cluster_unit.removesuffix('s')}"
        how = every if zero else f"{level} upper bound {figure(bound.upper)}"
        return Outcome.MET, f"{found}, {how} < {figure(clause.limit)} {size}"
    if bound.lower > clause.limit:
        return Outcome.BREACHED, f"{found}, {level} lower bound {figure(bound.lower)} > {figure(clause.limit)} {size}"
    return (
        Outcome.INCONCLUSIVE,
        f"{found}, {level} bounds {figure(bound.lower)} and {figure(bound.upper)} enclose "
        f"{figure(clause.limit)} {size}",
    )


def _judged(
    clause: ClusterClause,
    outcome: Outcome,
    reason: str,
    bound: ClusterBound | ExceedanceBound | None,
    method: str,
    clusters: int,
    details: Details,
) -> JudgedClause:
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"{clause.level}.{clause.name}",
            slice=clause.slice,
            outcome=outcome,
            reason=reason,
            unit=clause.unit,
            estimate=bound.estimate if bound else None,
            lower=finite(bound.lower) if bound else None,
            upper=finite(bound.upper) if bound else None,
            limit=clause.limit,
            n=clusters,
            n_unit=clause.cluster_unit,
            method=method,
            details={**details, "descriptive": not clause.decisive},
        ),
        level=clause.level,
        decisive=clause.decisive,
        p_met=bound.p_met if bound else None,
        p_breached=bound.p_breached if bound else None,
        sampled=True,
    )
