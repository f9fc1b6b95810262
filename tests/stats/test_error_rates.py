"""Error of every kind of clause over 2,000 simulated contracts whose truth lies on the limit: at most 6% at nominal 5%.

The cases are those of `python -m benchmarks.error_rates`, whose table stands in docs/design/statistics.md.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.error_rates import CASES, Case, lognormal, rates

from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.cluster import cluster_bound
from kvassay.stats.planning import documents_power, pairs_power, plan_documents, plan_pairs
from tests.stats.test_binary import is_met

RUNS = 2000
MOST = 0.06
LONG = {
    "lognormal sigma 0.6, D = 20",
    "lognormal sigma 1, D = 20, 10000 replicates",
    "lognormal sigma 1, D = 24",
    "lognormal sigma 1, D = 40",
    "gamma shape 4, D = 20",
    "gamma shape 1, D = 20",
    "share 0.01, document sigma 0.6, D = 24",
    "share 0.05, document sigma 1, D = 24",
}
"""In the benchmark alone: each takes seconds, and a harder case of its kind is here."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in LONG], ids=lambda case: case.kind)
def test_error_is_at_most_six_percent(case: Case) -> None:
    found = rates(case, RUNS)
    assert found.met / RUNS <= MOST
    assert found.breached / RUNS <= MOST


def test_the_cases_cover_every_kind_of_clause() -> None:
    assert {case.kind for case in CASES if case.name not in LONG} == {
        "kl_mean",
        "kl_exceed",
        "nll_delta",
        "task",
        "task, sequential",
        "any claim, holm",
        "any claim, fixed sequence",
        "all clauses",
    }
    assert {case.name for case in CASES} > LONG


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "variation"), [(0.75, 0.4), (0.5, 0.9)])
def test_power_at_the_planned_number_of_documents(ratio: float, variation: float) -> None:
    """Lognormal documents: the planned D gives the power asked for, within 5 points, over 600 contracts."""
    documents = plan_documents(ratio, variation, 1.0).documents
    assert documents is not None
    rng, sigma = np.random.default_rng(1), math.sqrt(math.log1p(variation**2))
    met = sum(
        cluster_bound(ratio * lognormal(rng, documents, sigma), np.ones(documents), 1.0, replicates=2000, seed=k).upper
        < 1
        for k in range(600)
    )
    planned = documents_power(documents, ratio, variation, 1.0)
    assert planned >= 0.8
    assert met / 600 == pytest.approx(planned, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "discordance", "delta"), [(0.05, 0.06, 0.0), (0.1, 0.2, -0.02)])
def test_power_at_the_planned_number_of_pairs(margin: float, discordance: float, delta: float) -> None:
    """The planned n gives the power asked for, within 5 points, over 2,000 contracts."""
    pairs = plan_pairs(margin, discordance, delta).pairs
    assert pairs is not None
    loss = (discordance - delta) / 2
    draws = np.random.default_rng(3).multinomial(pairs, [loss, discordance - loss, 1 - discordance], size=RUNS)[:, :2]
    tables, counts = np.unique(draws, axis=0, return_counts=True)
    met = sum(
        count * is_met(paired_noninferiority(pairs, losses, gains, margin))
        for (losses, gains), count in zip(tables.tolist(), counts.tolist(), strict=True)
    )
    assert met / RUNS == pytest.approx(pairs_power(pairs, margin, discordance, delta), abs=0.05)
    assert met / RUNS >= 0.75
