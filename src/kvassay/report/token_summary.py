"""What the token rows of an arm say beyond its clauses: the worst document and position, and slices.

These are descriptive: the verdicts come from `kvassay.judge` alone. Means and bounds use the same estimator as the
judge (ratio of document sums, bootstrap-t over whole documents), so that a reader can lay them side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from kvassay.core.contract import Contract
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


def summarise_kl(tokens: Any, contract: Contract, arms: Sequence[str], by_slice: bool = False) -> list[KlSummary]:
    """One summary an arm that has rows, or one an arm and slice. `tokens` is the pack's table of token rows."""
    summaries: list[KlSummary] = []
    for arm in arms:
        rows = tokens.filter(pc.equal(tokens.column("arm"), arm))
        if not by_slice:
            if rows.num_rows:
                summaries.append(_summary(rows, arm, ALL, contract))
            continue
        for name in sorted(pc.unique(rows.column("slice")).to_pylist()):
            part = rows.filter(pc.equal(rows.column("slice"), name))
            summaries.append(_summary(part, arm, name, contract))
    return summaries


def slice_names(table: Any) -> list[str]:
    return sorted(pc.unique(table.column("slice")).to_pylist())


def _summary(rows: Any, arm: str, name: str, contract: Contract) -> KlSummary:
    kl = _floats(rows.column("kl_nats"))
    usable = np.isfinite(kl)
    agreement = pc.mean(rows.column("top1_agrees")).as_py()
    if not usable.any():
        return KlSummary(arm, name, 0, 0, len(kl), None, None, None, None, None, None, agreement)
    encoded = rows.column("document").combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)[usable]
    positions = rows.column("position").to_numpy()[usable]
    kl = kl[usable]
    sums, counts = document_sums(kl, codes)
    means = sums / counts
    worst, highest = int(np.argmax(means)), int(np.argmax(kl))
    lower, upper = _bounds(sums, counts, contract)
    return KlSummary(
        arm=arm,
        slice=name,
        documents=len(sums),
        positions=len(kl),
        unusable=int((~usable).sum()),
        mean_nats=math.fsum(sums.tolist()) / len(kl),
        lower_nats=lower,
        upper_nats=upper,
        p99_nats=float(np.quantile(kl, 0.99)),
        worst_position=Position(names[codes[highest]], int(positions[highest]), float(kl[highest])),
        worst_document=DocumentMean(names[int(np.unique(codes)[worst])], float(means[worst]), int(counts[worst])),
        top1_agreement=agreement,
    )


def _bounds(sums: Any, counts: Any, contract: Contract) -> tuple[float | None, float | None]:
    if len(sums) < MINIMUM_DOCUMENTS:
        return None, None
    plan = contract.inference
    # The limit moves p values only, which are not shown here.
    found = cluster_bound(sums, counts, 1.0, plan.alpha, plan.bootstrap_replicates, plan.seed)
    return found.lower, found.upper


def _floats(column: Any) -> Any:
    """A float column as an array, null as NaN."""
    return column.to_numpy(zero_copy_only=False).astype(np.float64)
