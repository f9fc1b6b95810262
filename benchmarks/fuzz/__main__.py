"""`python -m benchmarks.fuzz`: how many mutated inputs each parser took, and what it should not have done."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.fuzz.hunt import Hunt, hunt
from benchmarks.fuzz.parsers import PARSERS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--parser", action="append", choices=sorted(PARSERS), help="may be given several times")
    chosen.add_argument("--all", action="store_true", help="every parser, one after another")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each parser")
    parser.add_argument("--examples", type=int, default=10**9, help="most inputs of each parser")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="where inputs that found something are kept")
    given = parser.parse_args(arguments)
    findings = 0
    for name in PARSERS if given.all else given.parser:
        found = hunt(name, PARSERS[name], given.examples, 60 * given.minutes, given.seed, given.out)
        findings += len(found.findings)
        _print(found)
    print(f"{findings} findings")
    return 1 if findings else 0


def _print(found: Hunt) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(found.outcomes.items()))
    print(f"{found.parser}: {found.cases} inputs in {found.seconds:.0f} s: {counts}", flush=True)
    for each in found.findings:
        lines = each.message.strip().splitlines()
        print(f"  {each.status}: {lines[-1] if lines else ''} ({each.path})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
