"""Write docs/design/gate-certificate.md from the difference vectors: `python -m benchmarks.gate_certificate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.error_rates.__main__ import shown
from benchmarks.gate_certificate.injection import Cell, kl_cell, recall_cell, sequential_cell
from benchmarks.gate_certificate.vectors import FILE

PAGE = Path(__file__).parents[2] / "docs" / "design" / "gate-certificate.md"
MARGIN = 0.1
STEPS = (-0.05, -0.02, 0.0, 0.02, 0.05)
"""Injected truth, in accuracy beyond the margin."""
FACTORS = (1.2, 1.05, 1.0, 0.95, 0.8)
"""Injected truth, as a multiple of the limit of mean KL."""
ITEMS, MOST_ITEMS, DOCUMENTS = 150, 300, 24

INTRO = """# Gate certificate

How often is a verdict wrong on real differences whose truth is known? `python -m benchmarks.gate_certificate`
writes this page from [vectors.json](../../benchmarks/gate_certificate/vectors.json), which
`{command}` made in one run of {model}:
the sum of KL of {documents} documents of {tokens} scored tokens,
and what {items} recall items gained or lost, under {formats}.

Truth is injected: items or documents are drawn with replacement from a real vector, then answers are flipped at random,
or documents scaled, so that the true loss lies where a row says. The judge's own functions judge every resample.
MET is wrong where the truth is on the limit or outside it, BREACHED where it is on the limit or inside; wrong shares
are bold. Shares are in percent of {runs} resamples, with 95% Clopper-Pearson intervals, at a nominal 5%.

Where it errs more: on the limit, mean KL can be MET wrongly in more than 6% of resamples where a few documents weigh
much (skew of log KL near +1). A resample of {drawn} often lacks them, and no bound sees what is not there.

What this does not show: a vector of {documents} documents holds no tail heavier than its heaviest document, so
[statistics.md](statistics.md) adds simulated families; and other models, texts and formats have other vectors.
"""


def certificate(vectors: dict[str, Any], runs: int) -> str:
    names = [name for name in vectors["kl_nats_sums"] if len(set(vectors["kl_nats_sums"][name])) > 1]
    first = names[0]
    parts = [
        INTRO.format(
            command=vectors["command"],
            model=vectors["model"],
            documents=len(vectors["kl_nats_sums"][first]),
            items=len(vectors["recall_changes"][first]),
            tokens=vectors["tokens_a_document"],
            formats=", ".join(f"`{name}`" for name in names),
            drawn=DOCUMENTS,
            runs=runs,
        ),
        *_vectors(vectors, names),
        *_recall(vectors, names, runs),
        *_kl(vectors, names, runs),
    ]
    return "\n".join(parts) + "\n"


def _vectors(vectors: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield "## Vectors\n"
    yield "| format | mean KL, nats/token | CV between documents | skew of log KL | items lost | gained |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        sums, changes = np.array(vectors["kl_nats_sums"][name]), np.array(vectors["recall_changes"][name])
        logs = np.log(sums)
        skew = float(np.mean((logs - logs.mean()) ** 3) / logs.std() ** 3)
        mean = sums.mean() / vectors["tokens_a_document"]
        variation = sums.std(ddof=1) / sums.mean()
        lost, gained = int((changes < 0).sum()), int((changes > 0).sum())
        yield f"| `{name}` | {mean:.4g} | {variation:.2f} | {skew:+.2f} | {lost} | {gained} |"
    yield ""


def _recall(vectors: dict[str, Any], names: list[str], runs: int) -> Iterator[str]:
    designs: list[tuple[str, Callable[..., Cell], int]] = [
        (f"fixed, {ITEMS} items", recall_cell, ITEMS),
        (f"sequential, a look after every item, at most {MOST_ITEMS}", sequential_cell, MOST_ITEMS),
    ]
    for words, cell, size in designs:
        yield f"## Recall, margin {MARGIN:.0%}: {words}\n"
        yield "| format | true loss beyond the margin, points | MET, % | BREACHED, % |\n|---|---|---|---|"
        for name in names:
            vector = np.array(vectors["recall_changes"][name])
            for step in STEPS:
                found = cell(vector, -MARGIN + step, MARGIN, size, runs, seed=7)
                truth = f"{-100 * step:+.0f}" if step else "0, on it"
                yield _row(name, truth, found, outside=step <= 0, inside=step >= 0)
        yield ""


def _kl(vectors: dict[str, Any], names: list[str], runs: int) -> Iterator[str]:
    yield f"## Mean KL, {DOCUMENTS} documents\n"
    yield "| format | true mean over its limit | MET, % | BREACHED, % |\n|---|---|---|---|"
    for name in names:
        sums = np.array(vectors["kl_nats_sums"][name])
        for factor in FACTORS:
            found = kl_cell(sums, vectors["tokens_a_document"], factor, DOCUMENTS, runs, seed=7)
            yield _row(name, f"{factor:g}", found, outside=factor >= 1, inside=factor <= 1)
    yield ""


def _row(name: str, truth: str, cell: Cell, outside: bool, inside: bool) -> str:
    met, breached = shown(cell.met, cell.runs), shown(cell.breached, cell.runs)
    met, breached = (f"**{met}**" if outside else met), (f"**{breached}**" if inside else breached)
    return f"| `{name}` | {truth} | {met} | {breached} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    PAGE.write_text(certificate(json.loads(FILE.read_text()), runs))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
