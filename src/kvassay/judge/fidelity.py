"""Clauses on teacher-forced text: mean KL, its exceedance rate, mean NLL difference. The cluster is the document."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvassay.core.contract import Contract
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, Details, judge_clusters
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rows import Floats, TokenRows, TokenTable, labels_of, rows_in_slice
from kvassay.judge.wording import figure
from kvassay.stats.cluster import document_sums
from kvassay.stats.permutation import sign_permutation_p

NEGATIVE_KL_NATS = 1e-4
"""KL is never negative; single precision leaves about a millionth. Below minus this the value is wrong."""

LEVEL = "fidelity"


def fidelity_clauses(
    contract: Contract, table: TokenTable, rows: TokenRows | None, faults: tuple[str, ...]
) -> Iterator[JudgedClause]:
    """Verdicts of every fidelity clause: over all rows, then descriptive ones for each slice.

    `rows` are one arm's, None if it has none; `faults` are reasons why they may not be used.
    """
    for clause in _clauses(contract):
        yield _judge(contract, clause, rows, faults)
        if rows is None or len(table.slices) < 2:
            continue
        for name in labels_of(table.slices):
            part = rows.take(rows_in_slice(table.slices, rows.slice, name))
            if part.size:
                yield _judge(contract, clause._replace(slice=name, planned=None, decisive=False), part, faults)


def _clauses(contract: Contract) -> Iterator[ClusterClause]:
    bounds, planned = contract.fidelity, contract.text.documents
    if bound := bounds.kl_mean:
        yield ClusterClause(LEVEL, "kl_mean", bound.max, bound.unit, "mean KL", planned, bound.min_docs)
    if bound := bounds.kl_exceed:
        words = f"share of tokens with KL above {figure(bound.tau_nats)} nats"
        yield ClusterClause(
            LEVEL, "kl_exceed", bound.max_rate, "share", words, planned, bound.min_docs, threshold=bound.tau_nats
        )
    if bound := bounds.nll_delta:
        yield ClusterClause(LEVEL, "nll_delta", bound.max, bound.unit, "mean NLL difference", planned, bound.min_docs)


def _judge(contract: Contract, clause: ClusterClause, rows: TokenRows | None, faults: tuple[str, ...]) -> JudgedClause:
    if rows is None:
        return judge_clusters(contract, clause, None)
    values = rows.nll_candidate_nats - rows.nll_reference_nats if clause.name == "nll_delta" else rows.kl_nats
    return judge_clusters(
        contract,
        clause,
        ClusterRows(values, rows.document),
        [*faults, *_value_faults(clause, values)],
        {**_details(rows), **_permutation(contract, clause, rows, values)},
    )


def _details(rows: TokenRows) -> Details:
    agreement = rows.top1_agrees[~np.isnan(rows.top1_agrees)]
    return {"top1_agreement": float(np.count_nonzero(agreement)) / len(agreement) if len(agreement) else None}


def _permutation(contract: Contract, clause: ClusterClause, rows: TokenRows, values: Floats) -> Details:
    """Descriptive: of differences alone, since a KL is no difference of two sides that could change places."""
    if clause.name != "nll_delta" or not np.all(np.isfinite(values)):
        return {}
    sums, counts = document_sums(values, rows.document)
    return {"descriptive_permutation_p": sign_permutation_p(sums / counts, contract.inference.seed)}


def _value_faults(clause: ClusterClause, values: Floats) -> Iterator[str]:
    what = "NLL difference" if clause.name == "nll_delta" else "KL"
    unusable = int(np.count_nonzero(~np.isfinite(values)))
    if unusable:
        yield f"{what} is missing or not finite at {unusable} of {len(values)} positions"
    elif clause.name != "nll_delta" and (negative := int(np.count_nonzero(values < -NEGATIVE_KL_NATS))):
        yield f"KL is negative at {negative} of {len(values)} positions, least {figure(float(values.min()))} nats"
