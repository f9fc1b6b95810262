"""What the lognormal floor of the cluster bound mends and costs: `python -m benchmarks.error_rates.floor [runs]`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from benchmarks.error_rates import gamma, lognormal
from benchmarks.error_rates.__main__ import shown
from kvassay.stats.cluster import cluster_bound

FAMILIES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal sigma 0.6": lambda rng, d: lognormal(rng, d, 0.6),
    "lognormal sigma 1": lambda rng, d: lognormal(rng, d, 1.0),
    "gamma shape 4": lambda rng, d: gamma(rng, d, 4.0),
    "gamma shape 1": lambda rng, d: gamma(rng, d, 1.0),
}
_FAR = 1000.0
"""Document means moved this far below zero have no lognormal, so the bootstrap-t stands alone."""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(
        "| documents, true mean 1 | D | wrong MET, %: bootstrap-t alone | with the floor | median bound: alone | with |"
    )
    print("|---|---|---|---|---|---|")
    for name, draw in FAMILIES.items():
        for size in (20, 40, 100):
            rng, uppers = np.random.default_rng(5), np.zeros((runs, 2))
            for index in range(runs):
                values, ones = draw(rng, size), np.ones(size)
                alone = cluster_bound(values - _FAR, ones, 1.0, replicates=1000, seed=index).upper
                with_floor = cluster_bound(values, ones, 1.0, replicates=1000, seed=index).upper
                uppers[index] = (alone or 0.0) + _FAR, with_floor or 0.0
            wrong = [shown(int((column < 1).sum()), runs) for column in uppers.T]
            middle = np.median(uppers, axis=0)
            print(f"| {name} | {size} | {wrong[0]} | {wrong[1]} | {middle[0]:.2f} | {middle[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
