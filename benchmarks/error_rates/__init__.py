"""Error rates of every kind of clause, by simulated contracts whose truth lies exactly on the limit.

Each case draws the rows of one arm and has them judged by the function that the judge itself calls. `rates` counts
wrong MET and wrong BREACHED; both are errors, since on the limit neither may be said in more than alpha of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from kvassay.core.contract import Contract, parse_contract
from kvassay.core.records import Outcome
from kvassay.judge.cluster_clauses import ClusterClause, ClusterRows, judge_clusters
from kvassay.stats.binary import paired_noninferiority
from kvassay.stats.eprocess import wealths
from kvassay.stats.multiplicity import fixed_sequence, holm

ALPHA = 0.05
REPLICATES = 1000
TOKENS = 32


class Rates(NamedTuple):
    runs: int
    met: int
    breached: int


class Case(NamedTuple):
    """One kind of clause with one kind of data; `draw(rng)` says one contract's outcome."""

    name: str
    kind: str
    draw: Callable[[np.random.Generator, int], Outcome]
    counts_breached: bool = True
    """False where a case asks for claims of MET alone."""


def rates(case: Case, runs: int = 2000, seed: int = 11) -> Rates:
    rng = np.random.default_rng([seed, *case.name.encode()])
    found = [case.draw(rng, index) for index in range(runs)]
    return Rates(runs, found.count(Outcome.MET), found.count(Outcome.BREACHED))


_CONTRACT = parse_contract(
    'schema = "kvassay.contract/1"\nname = "simulated"\n[candidates]\norder = ["int8-token-head"]\n'
    f"[inference]\nbootstrap_replicates = {REPLICATES}\n[fidelity.kl_mean]\nmax = 1.0\n"
)


def contract_of(seed: int, replicates: int = REPLICATES) -> Contract:
    """A contract of the fixed design with this seed and size of the bootstrap."""
    changed = {"seed": seed, "bootstrap_replicates": replicates}
    return _CONTRACT.model_copy(update={"inference": _CONTRACT.inference.model_copy(update=changed)})


def lognormal(rng: np.random.Generator, documents: int, sigma: float) -> np.ndarray:
    return np.exp(rng.normal(0, sigma, documents) - sigma * sigma / 2)


def gamma(rng: np.random.Generator, documents: int, shape: float) -> np.ndarray:
    return rng.gamma(shape, 1 / shape, documents)


def noisy(rng: np.random.Generator, means: np.ndarray, sigma: float) -> np.ndarray:
    """Lognormal tokens around the documents' means, `[documents, tokens]`."""
    return means[:, None] * np.exp(rng.normal(0, sigma, (len(means), TOKENS)) - sigma * sigma / 2)


def mean_case(
    name: str,
    documents: int,
    draw: Callable[[np.random.Generator, int], np.ndarray],
    kind: str = "kl_mean",
    replicates: int = REPLICATES,
) -> Case:
    """A bound of 1 on a mean whose truth is 1; `draw` gives the tokens' figures `[documents, tokens]`."""

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        clause = ClusterClause("fidelity", kind, 1.0, "nats/token", "mean", documents, 20)
        return _judge(index, clause, draw(rng, documents), replicates)

    name = f"{name}, D = {documents}" + (f", {replicates} replicates" if replicates != REPLICATES else "")
    return Case(name, kind, outcome)


def exceed_case(rate: float, documents: int, sigma: float) -> Case:
    """A bound on the share of tokens above 1 whose truth is `rate`."""

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        spread = math.hypot(sigma, 1.5)
        shift = spread * float(ndtri(1 - rate))
        values = np.exp(rng.normal(0, sigma, (documents, 1)) + rng.normal(0, 1.5, (documents, 128)) - shift)
        clause = ClusterClause("fidelity", "kl_exceed", rate, "share", "share", documents, 20, threshold=1.0)
        return _judge(index, clause, values)

    return Case(f"share {rate:g}, document sigma {sigma:g}, D = {documents}", "kl_exceed", outcome)


def _judge(index: int, clause: ClusterClause, values: np.ndarray, replicates: int = REPLICATES) -> Outcome:
    rows = ClusterRows(values.ravel(), np.repeat(np.arange(len(values)), values.shape[1]))
    return judge_clusters(contract_of(index, replicates), clause, rows).outcome


def pairs_case(n: int, margin: float, discordance: float) -> Case:
    memory: dict[tuple[int, int], Outcome] = {}

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        loss = (discordance + margin) / 2
        losses, gains, _ = rng.multinomial(n, [loss, discordance - loss, 1 - discordance]).tolist()
        if (losses, gains) not in memory:
            result = paired_noninferiority(n, losses, gains, margin, ALPHA)
            memory[losses, gains] = _side(result.lower > -margin, result.upper < -margin)
        return memory[losses, gains]

    return Case(f"margin {margin:g}, discordance {discordance:g}, n = {n}", "task", outcome)


def sequential_case(most: int, margin: float, discordance: float) -> Case:
    """A look after every pair, which no schedule of looks can exceed."""

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        uniform, loss = rng.random(most), (discordance + margin) / 2
        met, breached = wealths(np.where(uniform < loss, -1, np.where(uniform < discordance, 1, 0)), margin)
        first = [np.flatnonzero(path >= 1 / ALPHA) for path in (met, breached)]
        times = [int(found[0]) if len(found) else most for found in first]
        return _side(times[0] < times[1], times[1] < times[0])

    return Case(f"margin {margin:g}, discordance {discordance:g}, at most {most}", "task, sequential", outcome)


def formats_case(rule: str, formats: int = 4) -> Case:
    """Formats that are all on the limit: any claim of MET is wrong."""
    one = pairs_case(150, 0.05, 0.08)
    memory: dict[tuple[int, int], float] = {}

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        p_values = []
        for _ in range(formats):
            losses, gains, _ = rng.multinomial(150, [0.065, 0.015, 0.92]).tolist()
            if (losses, gains) not in memory:
                memory[losses, gains] = paired_noninferiority(150, losses, gains, 0.05, ALPHA).p_met
            p_values.append(memory[losses, gains])
        if rule == "holm":
            claims = [p <= ALPHA for p in holm(p_values)]
        else:
            claims = list(fixed_sequence([p <= ALPHA for p in p_values]).claims)
        return _side(any(claims), False)

    return Case(f"{formats} formats, {one.name}", f"any claim, {rule}", outcome, counts_breached=False)


def both_case() -> Case:
    """Two clauses at their limits: a format is MET only if both are (intersection-union)."""
    one, two = pairs_case(150, 0.05, 0.08), pairs_case(300, 0.02, 0.04)

    def outcome(rng: np.random.Generator, index: int) -> Outcome:
        found = {one.draw(rng, index), two.draw(rng, index)}
        return _side(found == {Outcome.MET}, False)

    return Case("two task clauses on their limits", "all clauses", outcome, counts_breached=False)


def _side(met: bool, breached: bool) -> Outcome:
    return Outcome.MET if met else Outcome.BREACHED if breached else Outcome.INCONCLUSIVE


CASES = (
    mean_case("lognormal sigma 0.6", 20, lambda rng, d: noisy(rng, lognormal(rng, d, 0.6), 0.5)),
    mean_case("lognormal sigma 1", 20, lambda rng, d: noisy(rng, lognormal(rng, d, 1.0), 0.5)),
    mean_case("lognormal sigma 1", 20, lambda rng, d: noisy(rng, lognormal(rng, d, 1.0), 0.5), replicates=10_000),
    mean_case("lognormal sigma 1", 24, lambda rng, d: noisy(rng, lognormal(rng, d, 1.0), 0.5)),
    mean_case("lognormal sigma 1", 40, lambda rng, d: noisy(rng, lognormal(rng, d, 1.0), 0.5)),
    mean_case("lognormal sigma 0.8, tokens sigma 1.5", 20, lambda rng, d: noisy(rng, lognormal(rng, d, 0.8), 1.5)),
    mean_case("gamma shape 4", 20, lambda rng, d: noisy(rng, gamma(rng, d, 4.0), 0.5)),
    mean_case("gamma shape 1", 20, lambda rng, d: noisy(rng, gamma(rng, d, 1.0), 0.5)),
    mean_case("gamma shape 0.7", 20, lambda rng, d: noisy(rng, gamma(rng, d, 0.7), 0.5)),
    mean_case(
        "difference of gammas plus noise",
        20,
        lambda rng, d: noisy(rng, gamma(rng, d, 2.0), 0.5) + rng.normal(0, 2, (d, 1)) + rng.normal(0, 3, (d, TOKENS)),
        "nll_delta",
    ),
    exceed_case(0.05, 24, 0.6),
    exceed_case(0.01, 24, 0.6),
    exceed_case(0.05, 24, 1.0),
    pairs_case(64, 0.1, 0.12),
    pairs_case(150, 0.05, 0.08),
    pairs_case(300, 0.02, 0.04),
    sequential_case(300, 0.1, 0.12),
    sequential_case(400, 0.05, 0.15),
    formats_case("holm"),
    formats_case("fixed sequence"),
    both_case(),
)
