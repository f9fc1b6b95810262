"""The share of prompts whose outputs are still equal after t tokens, by the product-limit estimator.

E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations", J. Am. Stat. Assoc. 53 (1958)
457-481. A prompt's event is the first token that differs. Outputs that are equal to the end of what was generated are
observed to the horizon and no further; outputs that both ended equally can diverge no more, so they stay equal.
Nothing is then censored before the horizon, and the estimate is the plain share of prompts, with binomial intervals at
each single t. The band is pointwise: that it holds the whole curve at once is not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvassay.stats.rates import Interval, wilson_interval


class AgreementPoint(NamedTuple):
    tokens: int
    """The first so many tokens are equal."""
    equal: int
    """Prompts for which they are."""
    share: float
    interval: Interval


def agreement_after(divergences: Sequence[int | None], tokens: int, level: float) -> AgreementPoint:
    """Of prompts with these first divergences (equal tokens before it; None for none), the share equal after t."""
    equal = sum(divergence is None or divergence >= tokens for divergence in divergences)
    return AgreementPoint(tokens, equal, equal / len(divergences), wilson_interval(equal, len(divergences), level))


def agreement_curve(divergences: Sequence[int | None], horizon: int, level: float) -> list[AgreementPoint]:
    """The curve's steps: at 0, wherever it falls, and at the horizon."""
    falls = {divergence + 1 for divergence in divergences if divergence is not None and divergence < horizon}
    return [agreement_after(divergences, tokens, level) for tokens in sorted({0, horizon, *falls})]


def median_divergence(divergences: Sequence[int | None], horizon: int) -> int | None:
    """Tokens after which half of the prompts or fewer are still equal; None where more are at the horizon."""
    ordered = sorted(divergence for divergence in divergences if divergence is not None and divergence < horizon)
    needed = (len(divergences) + 1) // 2
    return ordered[needed - 1] + 1 if len(ordered) >= needed else None
