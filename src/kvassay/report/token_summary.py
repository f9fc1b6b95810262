"""What the token rows of an arm say beyond its clauses: the worst document and position, and slices.

These are descriptive: the verdicts come from `kvassay.judge` alone. Means and bounds use the same estimator as the
judge (ratio of document sums, bootstrap-t over whole documents), so that a reader can lay them side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.core.contract import Contract
from kvassay.pack.tables import ArrowTable
from kvassay.report.arrow_rows import Named, figures, named
from kvassay.stats.cluster import MINIMUM_DOCUMENTS, cluster_bound, document_sums

ALL = "all"
"""The name of the whole, in place of a slice's."""


class Position(NamedTuple):
    document: str
    position: int
    kl_nats: float


class DocumentMean(NamedTuple):
    document: str
    kl_mean_nats: float
    positions: int


class KlSummary(NamedTuple):
    """KL(reference || candidate) of one arm in one slice. `lower` and `upper` are None with too few documents."""

    arm: str
    slice: str
    documents: int
    positions: int
    unusable: int
    """Rows without a finite KL; they are in none of the figures."""
    mean_nats: float | None
    lower_nats: float | None
    upper_nats: float | None
    p99_nats: float | None
    worst_position: Position | None
    worst_document: DocumentMean | None
    top1_agreement: float | None


def summarise_kl(tokens: ArrowTable, contract: Contract, arms: Sequence[str]) -> list[KlSummary]:
    """One summary an arm that has rows, in the order of `arms`. `tokens` is the pack's table of token rows."""
    columns = _columns(tokens)
    codes = {name: code for code, name in enumerate(columns.arm.names)}
    return [_summary(columns, columns.arm.codes == codes[arm], arm, ALL, contract) for arm in arms if arm in codes]


def slice_summaries(tokens: ArrowTable, contract: Contract, arms: Sequence[str]) -> list[KlSummary]:
    """One summary an arm and slice, largest mean first; empty where the rows have one slice only."""
    columns = _columns(tokens)
    if len(columns.slice.names) < 2:
        return []
    found: list[KlSummary] = []
    for code, arm in enumerate(columns.arm.names):
        of_arm = columns.arm.codes == code
        for place, name in enumerate(columns.slice.names):
            rows = of_arm & (columns.slice.codes == place)
            if arm in arms and rows.any():
                found.append(_summary(columns, rows, arm, name, contract))
    return sorted(found, key=lambda summary: -(summary.mean_nats if summary.mean_nats is not None else -1.0))


class _Columns(NamedTuple):
    """Token rows, each `[rows]`."""

    arm: Named
    slice: Named
    document: Named
    position: NDArray[np.float64]
    kl_nats: NDArray[np.float64]
    top1_agrees: NDArray[np.float64]


def _columns(tokens: ArrowTable) -> _Columns:
    return _Columns(
        arm=named(tokens, "arm"),
        slice=named(tokens, "slice"),
        document=named(tokens, "document"),
        position=figures(tokens, "position"),
        kl_nats=figures(tokens, "kl_nats"),
        top1_agrees=figures(tokens, "top1_agrees"),
    )


def _summary(columns: _Columns, rows: NDArray[np.bool_], arm: str, name: str, contract: Contract) -> KlSummary:
    agrees = columns.top1_agrees[rows]
    agrees = agrees[~np.isnan(agrees)]
    agreement = float(np.mean(agrees)) if len(agrees) else None
    usable = rows & np.isfinite(columns.kl_nats)
    unusable = int(rows.sum() - usable.sum())
    if not usable.any():
        return KlSummary(arm, name, 0, 0, unusable, None, None, None, None, None, None, agreement)
    kl, positions = columns.kl_nats[usable], columns.position[usable]
    codes = columns.document.codes[usable].astype(np.int64)
    sums, counts = document_sums(kl, codes)
    means = sums / counts
    worst, highest = int(np.unique(codes)[np.argmax(means)]), int(np.argmax(kl))
    lower, upper = _bounds(sums, counts, contract)
    documents = columns.document.names
    return KlSummary(
        arm=arm,
        slice=name,
        documents=len(sums),
        positions=len(kl),
        unusable=unusable,
        mean_nats=math.fsum(sums.tolist()) / len(kl),
        lower_nats=lower,
        upper_nats=upper,
        p99_nats=float(np.quantile(kl, 0.99)),
        worst_position=Position(documents[codes[highest]], int(positions[highest]), float(kl[highest])),
        worst_document=DocumentMean(documents[worst], float(means.max()), int(counts[np.argmax(means)])),
        top1_agreement=agreement,
    )


def _bounds(sums: Any, counts: Any, contract: Contract) -> tuple[float | None, float | None]:
    if len(sums) < MINIMUM_DOCUMENTS:
        return None, None
    plan = contract.inference
    # The limit moves p values only, which are not shown here.
    found = cluster_bound(sums, counts, 1.0, plan.alpha, plan.bootstrap_replicates, plan.seed)
    return found.lower, found.upper
