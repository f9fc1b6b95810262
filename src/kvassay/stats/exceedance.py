"""Share of tokens whose divergence exceeds a threshold, with a sound bound where such tokens are rare.

Where at least 10 documents have an exceeding token, the share is a mean over clusters like any other (`cluster`).
Below that its bootstrap is meaningless: with no event at all it has no spread, and the interval is zero wide. Then

- the upper bound is that of a larger mean which never degenerates: 1{x > tau} <= min(x/tau, 1)² for x >= 0, so
  E[min(x/tau, 1)²] >= P(x > tau) (Markov's inequality applied to the square, as in Chebyshev's), and its bootstrap-t
  upper bound is one of the rate too. Values far below tau give a small bound, values just below it do not: no event
  among near misses proves little, and the bound says so;
- the lower bound takes documents as the units: the Clopper-Pearson lower bound of the share of documents with an
  event, times the smallest share of exceeding tokens in one of them.

Where even the larger mean has no spread (every value zero), only whole documents count: the Clopper-Pearson upper
bound of the share of documents with an event, each taken to exceed throughout.

Simulated at the limit (24 documents of 256 tokens, lognormal, document sigma 0.3 to 1, limits 0.1 to 5%), the upper
bound was wrong in 4 to 6% of runs where the share itself was bootstrapped and in none where the larger mean was. The
Clopper-Pearson bound of documents times the largest share seen in one, which looks like an alternative, was wrong in
7 to 22% where events were rare.

Where values are 0 or 1 (whether the most likely token changed), there are no near misses and the larger mean is the
share itself, whose bootstrap is too short with few events. Then the upper bound is that of the same documents with one
event added to documents without any, until 10 have one: a share that is larger in every case, and no longer rare.

No bound from D documents sees a kind of document that makes up a share pi of the workload and happens to be missing,
which has the chance (1 − pi)^D: 29% for pi = 5% and D = 24. That share is to be read beside the verdict
(`binomial_upper_bound(0, D, alpha)`, 11.7% for 24 documents).
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from kvassay.stats.cluster import MINIMUM_DOCUMENTS, Floats, cluster_bound, document_sums
from kvassay.stats.distributions import binomial_lower_bound, binomial_upper_bound, reproducible

EVENT_DOCUMENTS = 10
"""Documents with an event from which the bootstrap of the share itself is used."""

Method = Literal["bootstrap-t", "second-moment", "documents", "filled"]


class ExceedanceBound(NamedTuple):
    documents: int
    tokens: int
    events: int
    documents_with_events: int
    estimate: float
    """Events per token."""
    se: float | None
    lower: float | None
    """One-sided bounds at 1 − alpha; None with too few documents."""
    upper: float | None
    p_met: float | None
    p_breached: float | None
    method: Method
    """What gave the upper bound."""


def exceedance_bound(
    values: Floats,
    document: NDArray[np.int64],
    tau: float,
    limit: float,
    alpha: float = 0.05,
    replicates: int = 2000,
    seed: int = 7,
    minimum_documents: int = MINIMUM_DOCUMENTS,
    binary: bool = False,
) -> ExceedanceBound:
    """Bounds of P(value > tau) against `limit`; `values` (>= 0 up to rounding) and `document` codes are `[tokens]`.

    `binary` says that values are 0 or 1 by their nature, so that no value comes near `tau` without exceeding it.
    """
    if not tau > 0 or not 0 < limit < 1:
        raise ValueError(f"need tau > 0 and 0 < limit < 1, found {tau} and {limit}")
    event_sums, counts = document_sums((values > tau).astype(np.float64), document)
    direct = cluster_bound(event_sums, counts, limit, alpha, replicates, seed, minimum_documents)
    with_events = int(np.count_nonzero(event_sums))
    result = ExceedanceBound(
        documents=direct.documents,
        tokens=direct.tokens,
        events=int(event_sums.sum()),
        documents_with_events=with_events,
        estimate=direct.estimate,
        se=direct.se,
        lower=direct.lower,
        upper=direct.upper,
        p_met=direct.p_met,
        p_breached=direct.p_breached,
        method="bootstrap-t",
    )
    if direct.upper is None or (with_events >= EVENT_DOCUMENTS and not direct.degenerate):
        return result
    lower, p_breached = _lower_by_documents(event_sums / counts, limit, alpha)
    result = result._replace(lower=lower, p_breached=p_breached)
    if binary and with_events < EVENT_DOCUMENTS:
        filled = cluster_bound(_filled(event_sums, counts), counts, limit, alpha, replicates, seed, minimum_documents)
        return result._replace(upper=filled.upper, p_met=filled.p_met, method="filled")
    squares, _ = document_sums(np.clip(values / tau, 0.0, 1.0) ** 2, document)
    larger = cluster_bound(squares, counts, limit, alpha, replicates, seed, minimum_documents)
    if larger.degenerate or (direct.degenerate and with_events > 0):
        return result._replace(
            upper=binomial_upper_bound(with_events, direct.documents, alpha),
            p_met=reproducible(bdtr(with_events, direct.documents, limit)),
            method="documents",
        )
    return result._replace(upper=larger.upper, p_met=larger.p_met, method="second-moment")


def _filled(events: Floats, counts: Floats) -> Floats:
    """Events by document with one more in the first documents without any, the shortest first, until enough have one.

    An event weighs most in a short document, so the order errs to the safe side and does not depend on names.
    """
    more = events.copy()
    empty = [index for index in np.argsort(counts, kind="stable") if events[index] == 0]
    for index in empty[: max(0, EVENT_DOCUMENTS - int(np.count_nonzero(events)))]:
        more[index] = 1
    return more


def _lower_by_documents(shares: Floats, limit: float, alpha: float) -> tuple[float, float]:
    """Lower bound of the rate and p value against rate <= limit, from whole documents."""
    documents, with_events = len(shares), int(np.count_nonzero(shares))
    if with_events == 0:
        return 0.0, 1.0
    least = float(np.min(shares[shares > 0]))
    share_of_documents = min(1.0, limit / least)
    p_breached = 1.0 if share_of_documents >= 1 else 1 - float(bdtr(with_events - 1, documents, share_of_documents))
    return binomial_lower_bound(with_events, documents, alpha) * least, reproducible(p_breached, 9)
