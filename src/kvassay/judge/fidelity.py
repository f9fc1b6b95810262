"""Clauses on teacher-forced text: means and shares over decode positions. The cluster is the document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from kvassay.core.clauses.fidelity import FidelityBound, KlExceedBound
from kvassay.core.contract import Contract
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, Details, judge_clusters
from kvassay.judge.judged import JudgedClause
from kvassay.judge.rows import Floats, TokenRows
from kvassay.judge.token_slices import TokenSlices
from kvassay.judge.wording import figure
from kvassay.stats.cluster import document_sums
from kvassay.stats.permutation import sign_permutation_p

NEGATIVE_KL_NATS = 1e-4
"""KL is never negative; single precision leaves about a millionth. Below minus this the value is wrong."""

LEVEL = "fidelity"

FIGURES: dict[str, Callable[[TokenRows], Floats]] = {
    "kl_mean": lambda rows: rows.kl_nats,
    "kl_exceed": lambda rows: rows.kl_nats,
    "reverse_kl_mean": lambda rows: rows.reverse_kl_nats,
    "nll_delta": lambda rows: rows.nll_candidate_nats - rows.nll_reference_nats,
    "top1_agreement": lambda rows: 1 - rows.top1_agrees,
    "topk_agreement": lambda rows: 1 - rows.top10_overlap,
}
"""What each clause bounds from above, by row: of the agreements, what is lost."""

_WORDS = {
    "kl_mean": ("mean KL", "KL"),
    "reverse_kl_mean": ("mean reverse KL", "reverse KL"),
    "kl_exceed": ("share of tokens with KL above {tau} nats", "KL"),
    "nll_delta": ("mean NLL difference", "NLL difference"),
    "top1_agreement": ("share of tokens whose most likely next token changes", "agreement of the most likely token"),
    "topk_agreement": (
        "mean share of the reference's ten most likely tokens that leave the ten",
        "overlap of the ten most likely tokens",
    ),
}
"""What a reason calls the clause's figure, and that of one row."""


def fidelity_clauses(contract: Contract, of_arm: TokenSlices | None, faults: tuple[str, ...]) -> Iterator[JudgedClause]:
    """Verdicts of every fidelity clause: over all scored rows, then for each slice; those the contract names decide.

    `of_arm` is one arm's, None if it has no rows; `faults` are reasons why they may not be used.
    """
    for name, bound in contract.fidelity.bounds.items():
        clause = fidelity_clause(name, bound, contract.text.documents)
        yield _judge(contract, clause, None if of_arm is None or not of_arm.rows.size else of_arm.rows, faults)
        known = {} if of_arm is None else {part.label: part for part in of_arm.slices}
        for label in (*bound.slices, *(label for label in known if label not in bound.slices)):
            decisive = label in bound.slices
            if of_arm is None or label not in known:
                yield _judge(contract, clause._replace(slice=label), None, faults)
                continue
            part = known[label]
            of_slice = clause._replace(slice=label, planned=part.planned if decisive else None, decisive=decisive)
            of_part = (*faults, part.fault) if part.fault else faults
            yield _judge(contract, of_slice, of_arm.rows.take(part.mask), of_part)


def fidelity_clause(name: str, bound: FidelityBound, planned: int) -> ClusterClause:
    """The clause of that name over all scored rows."""
    binary = name == "top1_agreement"
    threshold = 0.5 if binary else None
    if isinstance(bound, KlExceedBound):
        threshold = bound.tau_nats
    words = _WORDS[name][0].format(tau=figure(threshold) if threshold is not None else "")
    return ClusterClause(
        LEVEL, name, bound.limit, bound.figure_unit, words, planned, bound.min_docs, threshold=threshold, binary=binary
    )


def _judge(contract: Contract, clause: ClusterClause, rows: TokenRows | None, faults: tuple[str, ...]) -> JudgedClause:
    if rows is None:
        return judge_clusters(contract, clause, None)
    values = FIGURES[clause.name](rows)
    return judge_clusters(
        contract,
        clause,
        ClusterRows(values, rows.document),
        [*faults, *_value_faults(clause, values)],
        {**_details(rows), **_permutation(contract, clause, rows, values)},
    )


def _details(rows: TokenRows) -> Details:
    """Beside every figure: flips are mostly near-ties, so without a clause on them they only describe."""
    return {
        name: math.fsum(known.tolist()) / len(known) if len(known := column[~np.isnan(column)]) else None
        for name, column in (("top1_agreement", rows.top1_agrees), ("top10_overlap", rows.top10_overlap))
    }


def _permutation(contract: Contract, clause: ClusterClause, rows: TokenRows, values: Floats) -> Details:
    """Descriptive: of differences alone, since a KL is no difference of two sides that could change places."""
    if clause.name != "nll_delta" or not np.all(np.isfinite(values)):
        return {}
    sums, counts = document_sums(values, rows.document)
    return {"descriptive_permutation_p": sign_permutation_p(sums / counts, contract.inference.seed)}


def _value_faults(clause: ClusterClause, values: Floats) -> Iterator[str]:
    what = _WORDS[clause.name][1]
    unusable = int(np.count_nonzero(~np.isfinite(values)))
    if unusable:
        yield f"{what} is missing or not finite at {unusable} of {len(values)} positions"
    elif clause.name in ("top1_agreement", "topk_agreement"):
        if outside := int(np.count_nonzero((values < -1e-6) | (values > 1))):
            yield f"{what} is outside 0 to 1 at {outside} of {len(values)} positions"
    elif clause.name != "nll_delta" and (negative := int(np.count_nonzero(values < -NEGATIVE_KL_NATS))):
        yield f"{what} is negative at {negative} of {len(values)} positions, least {figure(float(values.min()))} nats"
