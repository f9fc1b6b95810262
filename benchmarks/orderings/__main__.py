"""Which predicted orderings of formats hold on a real model, each with a paired interval.

    python -m benchmarks.orderings MODEL [--documents 40] [--out FILE.json] [--markdown FILE.md]

MODEL is whatever `kvassay assess` takes. KL is of decode positions, in one decode-faithful pass a format; intervals are
bootstrap-t over documents, one-sided 95% each way. Nothing is asserted: a claim that comes out the other way is listed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.orderings.claims import CONTRASTS, PAIRS, Claim, Contrast
from benchmarks.orderings.experiments import (
    Finding,
    allocator,
    key_bias,
    mse_as_a_guide,
    outcome_of,
    requantization,
)
from benchmarks.orderings.scoring import CORPUS, PROMPT_TOKENS, SCORED_TOKENS, SEED, Scores, interval
from kvassay.core.format_names import parse_format
from kvassay.core.ledger import predict_ledger
from kvassay.errors import KvassayError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    scores = Scores(arguments.model, arguments.documents)
    findings = [*pairs(scores), allocator(scores), mse_as_a_guide(scores), requantization(scores), key_bias()]
    findings.sort(key=lambda finding: (int(finding.number.rstrip("abcd")), finding.number))
    result = {
        "model": arguments.model,
        "weights_sha256": scores.loaded.hashes.weights,
        "corpus": CORPUS,
        "seed": SEED,
        "documents": arguments.documents,
        "tokens": [PROMPT_TOKENS, SCORED_TOKENS],
        "seconds": round(time.monotonic() - began),
        "threads": torch.get_num_threads(),
        "mean_kl_nats": {name: interval(values)._asdict() for name, values in sorted(scores.kl.items())},
        "findings": [finding._asdict() for finding in findings],
    }
    text = markdown(result, findings)
    print(text)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(text)


def pairs(scores: Scores) -> list[Finding]:
    findings, runnable = [], []
    for claim in (*PAIRS, *CONTRASTS):
        try:
            for name in _names(claim):
                predict_ledger(scores.loaded.geometry, parse_format(name), 64)
        except KvassayError as error:
            findings.append(Finding(claim.number, claim.text, "not measured", str(error), {}))
        else:
            runnable.append(claim)
    scores.run({name: None for claim in runnable for name in _names(claim)})
    return findings + [_pair(scores, c) if isinstance(c, Claim) else _contrast(scores, c) for c in runnable]


def _names(claim: Claim | Contrast) -> tuple[str, ...]:
    return (claim.better, claim.worse) if isinstance(claim, Claim) else (*claim.larger, *claim.smaller)


def _pair(scores: Scores, claim: Claim) -> Finding:
    difference = interval(scores.kl[claim.worse] - scores.kl[claim.better])
    better, worse = scores.mean(claim.better), scores.mean(claim.worse)
    detail = f"`{claim.better}` {better.estimate:.3g}, `{claim.worse}` {worse.estimate:.3g}"
    if claim.note:
        detail += f" ({claim.note})"
    figures = {"difference": difference._asdict(), "n": len(scores.token_ids)}
    tokens = PROMPT_TOKENS + SCORED_TOKENS
    figures["persistent_nbytes"] = [
        predict_ledger(scores.loaded.geometry, parse_format(name), tokens).persistent_nbytes
        for name in (claim.better, claim.worse)
    ]
    return Finding(claim.number, claim.text, outcome_of(difference), detail, figures)


def _contrast(scores: Scores, claim: Contrast) -> Finding:
    gains = [np.log(scores.kl[without] / scores.kl[with_]) for without, with_ in (claim.larger, claim.smaller)]
    difference = interval(gains[0] - gains[1])
    first, second = (float(np.exp(gain.mean())) for gain in gains)
    return Finding(
        claim.number,
        claim.text,
        outcome_of(difference),
        f"KL falls by a factor of {first:.2f} and of {second:.2f}",
        {"difference_of_logs": difference._asdict(), "n": len(scores.token_ids)},
    )


def markdown(result: dict, findings: list[Finding]) -> str:
    lines = [
        f"`{result['model']}`, {result['documents']} documents of {PROMPT_TOKENS} + {SCORED_TOKENS} tokens of "
        f"{CORPUS}, mean KL in nats per token; {result['seconds']} s, threads: {result['threads']}.",
        "",
        "| # | claim | outcome | difference (90% interval) | figures |",
        "|---|---|---|---|---|",
    ]
    for finding in findings:
        bounds = finding.figures.get("difference") or finding.figures.get("difference_of_logs")
        shown = f"{bounds['estimate']:.3g} [{bounds['lower']:.3g}, {bounds['upper']:.3g}]" if bounds else ""
        lines.append(f"| {finding.number} | {finding.text} | {finding.outcome} | {shown} | {finding.detail} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
