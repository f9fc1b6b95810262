"""Print the table of error rates: `python -m benchmarks.error_rates [runs]`, two minutes of a processor for 2,000."""

from __future__ import annotations

import sys

from benchmarks.error_rates import CASES, rates
from kvassay.stats.distributions import binomial_lower_bound, binomial_upper_bound


def shown(events: int, runs: int) -> str:
    """Share with its two-sided 95% Clopper-Pearson interval, in percent."""
    low, high = binomial_lower_bound(events, runs, 0.025), binomial_upper_bound(events, runs, 0.025)
    return f"{100 * events / runs:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("| clause | data, truth on the limit | wrong MET, % | wrong BREACHED, % |\n|---|---|---|---|")
    for case in CASES:
        found = rates(case, runs)
        breached = shown(found.breached, runs) if case.counts_breached else "not counted"
        print(f"| {case.kind} | {case.name} | {shown(found.met, runs)} | {breached} |", flush=True)


if __name__ == "__main__":
    main()
