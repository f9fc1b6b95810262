"""How often a model's full-precision cache solves each kind of task: what a floor may ask, and what discriminates.

    python -m benchmarks.task_floors [--model NAME] [--kinds recall json] [--items 48] [--tokens 512 1024] [--json]

Teacher-forced, one forward pass an item, as in an assessment; no format takes part. Intervals are Wilson's at 95%
(Wilson 1927, "Probable inference, the law of succession, and statistical inference").
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from kvassay.core.clauses.tasks import TaskBound
from kvassay.core.slices import slice_labels
from kvassay.core.tasks.kinds import TEACHER_FORCED_KINDS
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model
from kvassay.measures.teacher_forced import greedy_tokens
from kvassay.workloads.tasks.items import TaskItem, task_items

Z95 = 1.959963984540054
PARAMETERS = {
    "passkey": {"languages": ("en", "de", "fr", "es")},
    "variable-tracking": {"hops": (1, 2, 3)},
    "arithmetic": {"steps": (1, 2)},
}
"""Beyond the defaults, so that every slice a contract can ask for is measured."""


class Share(NamedTuple):
    right: int
    n: int

    @property
    def wilson(self) -> tuple[float, float]:
        p, z2 = self.right / self.n, Z95**2 / self.n
        half = Z95 * math.sqrt(p * (1 - p) / self.n + z2 / (4 * self.n))
        return (p + z2 / 2 - half) / (1 + z2), (p + z2 / 2 + half) / (1 + z2)

    def words(self) -> str:
        low, high = self.wilson
        return f"{self.right}/{self.n} = {self.right / self.n:.2f} [{low:.2f}, {high:.2f}]"


class Measured(NamedTuple):
    kind: str
    whole: Share
    slices: dict[str, Share]
    wrong: list[tuple[str, str]]
    """Expected and found text of the first few wrong items."""
    longest_tokens: int
    seconds: float


def measure(kind: str, loaded: Any, scorer: DecodeScorer, tokens: list[int], items: int, seed: int) -> Measured:
    began = time.monotonic()
    lengths = {"context_tokens": tuple(tokens)}
    bound = TaskBound.model_validate({"kind": kind, "margin": 0.1, **lengths, **PARAMETERS.get(kind, {})})
    drawn = task_items(loaded.tokenizer, kind, bound.settings, seed, range(items))
    counts: defaultdict[str, list[bool]] = defaultdict(list)
    wrong = []
    for place, item in enumerate(drawn):
        found = loaded.tokenizer.decode(_answer(scorer, item))
        right = found == loaded.tokenizer.decode(item.answer_ids)
        if not right:
            wrong.append((item.expected, found))
        for label in ("all", *slice_labels(item.slice)):
            counts[label].append(right)
        print(f"\r{kind}: {place + 1} of {items}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    shares = {label: Share(sum(outcomes), len(outcomes)) for label, outcomes in counts.items()}
    longest = max(len(item.token_ids) for item in drawn)
    return Measured(kind, shares.pop("all"), shares, wrong[:6], longest, time.monotonic() - began)


def _answer(scorer: DecodeScorer, item: TaskItem) -> list[int]:
    hidden = scorer.reference(torch.tensor(item.token_ids)).hidden
    return greedy_tokens(scorer.output_head, hidden[-len(item.answer_ids) - 1 : -1]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Reference accuracy of each kind of task.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kinds", nargs="+", choices=TEACHER_FORCED_KINDS, default=sorted(TEACHER_FORCED_KINDS))
    parser.add_argument("--items", type=int, default=48)
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 1024])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    loaded = load_model(given.model)
    scorer = DecodeScorer(loaded.model, loaded.geometry, "exact")
    for kind in given.kinds:
        found = measure(kind, loaded, scorer, given.tokens, given.items, given.seed)
        if given.json:
            print(json.dumps({"model": given.model, "seed": given.seed, **found._asdict()}), flush=True)
            continue
        print(f"{kind:18} {found.whole.words()}  ({found.seconds:.0f} s)")
        for label, share in found.slices.items():
            print(f"    {label:16} {share.words()}")
        for expected, text in found.wrong:
            print(f"    wrong: {expected!r} read {text!r}", flush=True)


if __name__ == "__main__":
    main()
