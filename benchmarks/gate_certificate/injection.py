"""Real difference vectors with an injected truth, and how often the judge's own functions are wrong about them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.error_rates import contract_of
from kvassay.core.records import Outcome
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, judge_clusters
from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.eprocess import wealths

ALPHA = 0.05


class Cell(NamedTuple):
    """Verdicts over resamples of one vector at one injected truth."""

    truth: float
    limit: float
    runs: int
    met: int
    breached: int


def injected(vector: np.ndarray, delta: float, runs: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Items resampled with replacement `[runs, size]` and flipped at random, so that the truth is `delta`.

    Towards more loss, kept answers are lost; towards less, lost answers are given back, then kept ones gained.
    """
    drawn = vector[rng.integers(0, len(vector), (runs, size))]
    share = {value: float(np.mean(vector == value)) for value in (-1, 0, 1)}
    missing = delta - float(vector.mean())
    if missing < 0:
        return np.where((drawn == 0) & (rng.random(drawn.shape) < -missing / share[0]), -1, drawn)
    back = min(1.0, missing / share[-1]) if share[-1] else 0.0
    given = np.where((drawn == -1) & (rng.random(drawn.shape) < back), 0, drawn)
    rest = missing - back * share[-1]
    return np.where((drawn == 0) & (rng.random(drawn.shape) < rest / share[0]), 1, given)


def recall_cell(vector: np.ndarray, delta: float, margin: float, size: int, runs: int, seed: int) -> Cell:
    """The fixed design."""
    drawn = injected(vector, delta, runs, size, np.random.default_rng(seed))
    tables, counts = np.unique(np.stack([(drawn < 0).sum(1), (drawn > 0).sum(1)]), axis=1, return_counts=True)
    met = breached = 0
    for (losses, gains), count in zip(tables.T.tolist(), counts.tolist(), strict=True):
        result = paired_noninferiority(size, losses, gains, margin, ALPHA)
        met += count * (result.lower > -margin)
        breached += count * (result.upper < -margin)
    return Cell(delta, -margin, runs, met, breached)


def sequential_cell(vector: np.ndarray, delta: float, margin: float, size: int, runs: int, seed: int) -> Cell:
    """The sequential design with a look after every item, up to `size` of them."""
    met = breached = 0
    for changes in injected(vector, delta, runs, size, np.random.default_rng(seed)):
        first = [np.flatnonzero(path >= 1 / ALPHA) for path in wealths(changes, margin)]
        times = [int(found[0]) if len(found) else size for found in first]
        met += times[0] < times[1]
        breached += times[1] < times[0]
    return Cell(delta, -margin, runs, met, breached)


def kl_cell(sums: np.ndarray, tokens: int, factor: float, documents: int, runs: int, seed: int) -> Cell:
    """Documents resampled and scaled, so that their true mean is `factor` times the limit."""
    rng, limit = np.random.default_rng(seed), float(sums.mean()) / tokens
    found = []
    for index in range(runs):
        drawn = factor * sums[rng.integers(0, len(sums), documents)] / tokens
        clause = ClusterClause("fidelity", "kl_mean", limit, "nats/token", "mean KL", documents, 20)
        # Every token of a document at its mean: the judge reads documents by their sums alone.
        rows = ClusterRows(np.repeat(drawn, 2), np.repeat(np.arange(documents), 2))
        found.append(judge_clusters(contract_of(index), clause, rows).outcome)
    return Cell(factor * limit, limit, runs, found.count(Outcome.MET), found.count(Outcome.BREACHED))
