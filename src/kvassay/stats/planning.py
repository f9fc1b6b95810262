"""Sample sizes and power, known before the run.

Binary, paired, margin m, expected difference delta and discordance p_d = P(loss) + P(gain):
n = (z_alpha + z_beta)²·(p_d − delta²)/(m + delta)², times the design effect, never fewer than the exact test needs
when not one pair is discordant, and raised until the enumerated power of the verdict's own rule reaches the power
asked for (with few pairs the formula promises up to 10 points too much).

Mean over documents with coefficient of variation CV and mean mu under the limit tau:
D >= ((z_alpha + z_beta)·CV·mu/(tau − mu))², at least 20. That leaves out skew, which a studentized bound pays for, and
the lognormal floor of `cluster`. So D is raised until the verdict's own rule, run on simulated lognormal documents with
this CV (`document_power`), reaches the power asked for.

p_d and CV come from a pilot that is not used again for the verdict.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvassay.stats.cluster import MINIMUM_DOCUMENTS
from kvassay.stats.distributions import normal_quantile
from kvassay.stats.document_power import simulated_power
from kvassay.stats.unconditional import least_gains, region_probability, worst_case_probability

_SEARCH_GROWTH = 1.04
_SEARCH_STEPS = 40
_SEARCH_SHARE = 256
"""Documents are found to one part in this many."""
_ENUMERATED_PAIRS = 20_000
"""Above this the normal formula is exact enough, and the number it gives is kept."""
_Z_HALVINGS = 10


class PairsPlan(NamedTuple):
    """Pairs that a paired binary clause needs."""

    pairs: int | None
    """What to run; None where no number suffices, since the expected difference lies on the margin itself."""
    by_formula: int | None
    """The normal formula alone, design effect included."""
    undiscordant_tango: int
    """Least pairs with which Tango's bound says MET when no pair is discordant."""
    undiscordant_exact: int
    """The same under the exact floor, which is what the verdict requires."""


class DocumentsPlan(NamedTuple):
    """Documents that a clause on a mean needs."""

    documents: int | None
    """What to run; None where the expected mean is not inside the limit."""
    by_formula: int | None
    """The formula alone, before skew and the minimum of 20."""


def plan_pairs(
    margin: float,
    discordance: float,
    delta: float = 0.0,
    alpha: float = 0.05,
    power: float = 0.8,
    design_effect: float = 1.0,
) -> PairsPlan:
    """Pairs for a verdict with the power asked for: MET where `delta` lies inside the margin, else BREACHED."""
    _check_binary(margin, discordance, delta, design_effect)
    z = normal_quantile(1 - alpha)
    tango = math.ceil(z * z * (1 - margin) / margin)
    exact = math.ceil(math.log(alpha) / math.log1p(-margin))
    if margin + delta == 0:
        return PairsPlan(None, None, tango, exact)
    quantiles = z + normal_quantile(power)
    formula = quantiles**2 * (discordance - delta * delta) / (margin + delta) ** 2 * design_effect
    by_formula = max(1, math.ceil(formula))
    pairs = max(by_formula, exact) if margin + delta > 0 else by_formula
    for _ in range(_SEARCH_STEPS if pairs <= _ENUMERATED_PAIRS else 0):
        if pairs_power(pairs, margin, discordance, delta, alpha, design_effect) >= power:
            break
        pairs = math.ceil(pairs * _SEARCH_GROWTH)
    return PairsPlan(pairs, by_formula, tango, exact)


def pairs_power(
    pairs: int, margin: float, discordance: float, delta: float = 0.0, alpha: float = 0.05, design_effect: float = 1.0
) -> float:
    """Probability of the verdict that `delta` deserves: MET where it lies inside the margin, else BREACHED.

    By exact enumeration of the verdict's own rule (Tango and the exact floor). On the margin itself this is the
    probability of a wrong BREACHED, at most alpha. A design effect above 1 shrinks the number of pairs. Takes some
    tenths of a second, almost independent of n.
    """
    _check_binary(margin, discordance, delta, design_effect)
    effective = max(1, math.floor(pairs / design_effect))
    breached = margin + delta <= 0
    region = _region(effective, margin, _critical_z(effective, margin, alpha, breached), breached)
    return min(1.0, region_probability(effective, (discordance - delta) / 2, delta, region, breached))


def plan_documents(
    mean: float, variation: float, limit: float, alpha: float = 0.05, power: float = 0.8
) -> DocumentsPlan:
    """`variation` is CV, the standard deviation of document means over their mean."""
    _check_mean(mean, variation)
    if mean >= limit:
        return DocumentsPlan(None, None)
    quantiles = normal_quantile(1 - alpha) + normal_quantile(power)
    by_formula = max(1, math.ceil((quantiles * variation * abs(mean) / (limit - mean)) ** 2))
    low, high = max(MINIMUM_DOCUMENTS - 1, by_formula // 2), max(MINIMUM_DOCUMENTS, by_formula)
    while documents_power(high, mean, variation, limit, alpha) < power:
        low, high = high, 2 * high
    while high - low > max(1, high // _SEARCH_SHARE):
        middle = (low + high) // 2
        if documents_power(middle, mean, variation, limit, alpha) < power:
            low = middle
        else:
            high = middle
    return DocumentsPlan(max(high, by_formula), by_formula)


def documents_power(documents: int, mean: float, variation: float, limit: float, alpha: float = 0.05) -> float:
    """Probability of MET for a clause on a mean; 0 below 20 documents.

    For the power of BREACHED turn the signs of `mean` and `limit`: documents of a negative mean are lognormal with
    the sign turned, and so is their skew.
    """
    _check_mean(mean, variation)
    if documents < MINIMUM_DOCUMENTS:
        return 0.0
    if variation * mean == 0:
        return float(mean < limit)
    return simulated_power(documents, variation, limit / mean, alpha, above=mean < 0)


def _critical_z(pairs: int, margin: float, alpha: float, breached: bool) -> float:
    """Least |Z| at −margin that decides: Tango's quantile, raised until the worst-case error is at most alpha."""
    low = normal_quantile(1 - alpha)
    if _size(pairs, margin, low, breached) <= alpha:
        return low
    high = low + 1.0
    while _size(pairs, margin, high, breached) > alpha:
        high += 1.0
    for _ in range(_Z_HALVINGS):
        middle = (low + high) / 2
        if _size(pairs, margin, middle, breached) > alpha:
            low = middle
        else:
            high = middle
    return high


def _size(pairs: int, margin: float, z: float, breached: bool) -> float:
    return worst_case_probability(pairs, -margin, _region(pairs, margin, z, breached), breached)


def _region(pairs: int, margin: float, z: float, breached: bool) -> NDArray[np.int64]:
    """By losses, the gains that decide: at least so many for MET, fewer for BREACHED."""
    return least_gains(pairs, -margin, -z if breached else z)


def _check_binary(margin: float, discordance: float, delta: float, design_effect: float) -> None:
    if not 0 < margin < 1 or not abs(delta) <= discordance <= 1 or design_effect < 1:
        raise ValueError(
            "need 0 < margin < 1, |delta| <= discordance <= 1 and a design effect of at least 1, found "
            f"margin {margin}, delta {delta}, discordance {discordance}, design effect {design_effect}"
        )


def _check_mean(mean: float, variation: float) -> None:
    if not np.isfinite(mean) or not np.isfinite(variation) or variation < 0:
        raise ValueError(f"need a finite mean and a variation of at least 0, found {mean} and {variation}")
