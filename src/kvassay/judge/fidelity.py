"""Clauses on teacher-forced text: mean KL, its exceedance rate, mean NLL difference. The cluster is the document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvassay.core.contract import Contract
from kvassay.core.records import ClauseVerdict, Outcome
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rows import ALL, Floats, TokenRows, TokenTable
from kvassay.judge.wording import counted, figure, finite, first_fault, level_percent
from kvassay.stats.cluster import ClusterBound, cluster_bound, design_effect, document_sums
from kvassay.stats.distributions import binomial_upper_bound
from kvassay.stats.exceedance import ExceedanceBound, exceedance_bound

NEGATIVE_KL_NATS = 1e-4
"""KL is never negative; single precision leaves about a millionth. Below minus this the value is wrong."""

LEVEL = "fidelity"


class _Clause(NamedTuple):
    name: str
    limit: float
    minimum_documents: int
    unit: str
    words: str
    """What the reason calls the figure."""


def fidelity_clauses(
    contract: Contract, table: TokenTable, rows: TokenRows | None, faults: tuple[str, ...]
) -> Iterator[JudgedClause]:
    """Verdicts of every fidelity clause: over all rows, then descriptive ones for each slice.

    `rows` are one arm's, None if it has none; `faults` are reasons why they may not be used.
    """
    for clause in _clauses(contract):
        yield _judge(contract, clause, ALL, rows, faults, table)
        if rows is None or len(table.slices) < 2:
            continue
        for code, name in enumerate(table.slices):
            part = rows.take(rows.slice == code)
            if name != ALL and part.size:
                yield _judge(contract, clause, name, part, faults, table)


def _clauses(contract: Contract) -> Iterator[_Clause]:
    bounds = contract.fidelity
    if bounds.kl_mean:
        yield _Clause("kl_mean", bounds.kl_mean.max, bounds.kl_mean.min_docs, bounds.kl_mean.unit, "mean KL")
    if bounds.kl_exceed:
        words = f"share of tokens with KL above {figure(bounds.kl_exceed.tau_nats)} nats"
        yield _Clause("kl_exceed", bounds.kl_exceed.max_rate, bounds.kl_exceed.min_docs, "share", words)
    if bounds.nll_delta:
        bound = bounds.nll_delta
        yield _Clause("nll_delta", bound.max, bound.min_docs, bound.unit, "mean NLL difference")


def _judge(
    contract: Contract,
    clause: _Clause,
    slice_name: str,
    rows: TokenRows | None,
    faults: tuple[str, ...],
    table: TokenTable,
) -> JudgedClause:
    descriptive = slice_name != ALL
    if rows is None:
        return _without_figures(clause, slice_name, Outcome.NOT_MEASURED, "no token rows of this arm", 0)
    documents = int(np.count_nonzero(np.diff(rows.document, prepend=-1)))  # rows are in order of documents
    values = rows.nll_candidate_nats - rows.nll_reference_nats if clause.name == "nll_delta" else rows.kl_nats
    if fault := first_fault([*faults, *_value_faults(clause, values)]):
        return _without_figures(clause, slice_name, Outcome.INVALID_EVIDENCE, fault, documents)
    bound, method, details = _bound(contract, clause, values, rows)
    outcome, reason = _decide(contract, clause, bound, descriptive)
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"fidelity.{clause.name}",
            slice=slice_name,
            outcome=outcome,
            reason=reason,
            unit=clause.unit,
            estimate=bound.estimate,
            lower=finite(bound.lower),
            upper=finite(bound.upper),
            limit=clause.limit,
            n=bound.documents,
            n_unit="documents",
            method=method,
            details={**details, "descriptive": descriptive},
        ),
        level=LEVEL,
        decisive=not descriptive,
        p_met=bound.p_met,
        p_breached=bound.p_breached,
        sampled=True,
    )


def _value_faults(clause: _Clause, values: Floats) -> Iterator[str]:
    what = "NLL difference" if clause.name == "nll_delta" else "KL"
    unusable = int(np.count_nonzero(~np.isfinite(values)))
    if unusable:
        yield f"{what} is missing or not finite at {unusable} of {len(values)} positions"
    elif clause.name != "nll_delta" and (negative := int(np.count_nonzero(values < -NEGATIVE_KL_NATS))):
        yield f"KL is negative at {negative} of {len(values)} positions, least {figure(float(values.min()))} nats"


def _bound(
    contract: Contract, clause: _Clause, values: Floats, rows: TokenRows
) -> tuple[ClusterBound | ExceedanceBound, str, dict[str, float | int | str | bool | None]]:
    inference = contract.inference
    settings = (inference.alpha, inference.bootstrap_replicates, inference.seed, clause.minimum_documents)
    details: dict[str, float | int | str | bool | None] = {}
    if clause.name == "kl_exceed":
        assert contract.fidelity.kl_exceed is not None, "the clause exists"
        tau_nats = contract.fidelity.kl_exceed.tau_nats
        bound = exceedance_bound(values, rows.document, tau_nats, clause.limit, *settings)
        method: str = bound.method
        effect = design_effect((values > tau_nats).astype(np.float64), rows.document)
        details |= {"events": bound.events, "documents_with_events": bound.documents_with_events}
    else:
        sums, counts = document_sums(values, rows.document)
        bound = cluster_bound(sums, counts, clause.limit, *settings)
        method = "bootstrap-t"
        effect = design_effect(values, rows.document)
        details["degenerate"] = bound.degenerate
    agreement = rows.top1_agrees[~np.isnan(rows.top1_agrees)]
    return (
        bound,
        method,
        {
            **details,
            "tokens": bound.tokens,
            "se": bound.se,
            "design_effect": effect,
            "p_met": bound.p_met,
            "p_breached": bound.p_breached,
            "top1_agreement": float(np.count_nonzero(agreement)) / len(agreement) if len(agreement) else None,
            # A kind of document rarer than this may be missing from the sample altogether.
            "unseen_document_share": binomial_upper_bound(0, bound.documents, inference.alpha),
        },
    )


def _decide(
    contract: Contract, clause: _Clause, bound: ClusterBound | ExceedanceBound, descriptive: bool
) -> tuple[Outcome, str]:
    """MET if the whole bound lies below the limit, BREACHED if above; INCONCLUSIVE off the planned design."""
    unit = f" {clause.unit}" if clause.unit != "share" else ""
    size = f"({counted(bound.documents, 'documents')}, {counted(bound.tokens, 'tokens')})"
    found = f"{clause.words} {figure(bound.estimate)}{unit}"
    if bound.lower is None or bound.upper is None:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, without bounds: at least {clause.minimum_documents} documents are needed {size}",
        )
    planned = contract.text.documents
    if not descriptive and bound.documents != planned:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, but the fixed design plans {planned} documents and {bound.documents} were scored: "
            "another number than planned may have been chosen by its result",
        )
    if isinstance(bound, ClusterBound) and bound.degenerate and bound.estimate != 0:
        return (
            Outcome.INCONCLUSIVE,
            f"{found}, the same in every document: without any spread there is no interval {size}",
        )
    level = level_percent(contract.inference.alpha)
    if bound.upper < clause.limit:
        zero = isinstance(bound, ClusterBound) and bound.degenerate
        how = "exactly zero in every document" if zero else f"{level} upper bound {figure(bound.upper)}"
        return Outcome.MET, f"{found}, {how} < {figure(clause.limit)} {size}"
    if bound.lower > clause.limit:
        return Outcome.BREACHED, f"{found}, {level} lower bound {figure(bound.lower)} > {figure(clause.limit)} {size}"
    return (
        Outcome.INCONCLUSIVE,
        f"{found}, {level} bounds {figure(bound.lower)} and {figure(bound.upper)} enclose "
        f"{figure(clause.limit)} {size}",
    )


def _without_figures(clause: _Clause, slice_name: str, outcome: Outcome, reason: str, documents: int) -> JudgedClause:
    descriptive = slice_name != ALL
    return JudgedClause(
        verdict=ClauseVerdict(
            clause=f"fidelity.{clause.name}",
            slice=slice_name,
            outcome=outcome,
            reason=reason,
            unit=clause.unit,
            estimate=None,
            lower=None,
            upper=None,
            limit=clause.limit,
            n=documents,
            n_unit="documents",
            method="none",
            details={"descriptive": descriptive},
        ),
        level=LEVEL,
        decisive=not descriptive,
        p_met=None,
        p_breached=None,
        sampled=True,
    )
