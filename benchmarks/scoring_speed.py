"""One-pass decode-faithful scoring against the stepwise real cache, on SmolLM2-135M. Ratios within one run.

    python benchmarks/scoring_speed.py [--json]

1. Scoring 1,024 decode positions after a prompt of 16 tokens: one pass against 1,024 calls on a QuantizedCache of the
   same format. The stepwise side is timed over an evenly spread sample of positions (its cost grows with the context).
2. Six formats on a document of 256 + 256 tokens: seconds of the six candidate passes and their comparison, against
   6 x the reference pass of the same document. Median of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import NamedTuple

import torch

from kvassay.cache import QuantizedCache
from kvassay.core.format_names import parse_format
from kvassay.engines.transformers.decode_scorer import DecodeScorer
from kvassay.engines.transformers.loading import load_model
from kvassay.measures.teacher_forced import CHUNK_TOKENS, compare_distributions
from kvassay.workloads.corpus import load_corpus
from kvassay.workloads.excerpts import text_documents

STEPWISE_FORMAT = "kivi-4,recent=32"
PROMPT, SCORED = 16, 1024
TIMED_STEPS_EVERY = 16
FORMATS = ("int8-token-head", "kivi-4,recent=32", "int4-g32", "q8_0", "q4_0", "kivi-2,recent=32")
REPETITIONS = 5


@torch.inference_mode()
def stepwise_seconds(loaded, token_ids: torch.Tensor) -> float:
    """Seconds of SCORED decode steps: every step runs, a spread sample of them is timed and scaled up."""
    cache = QuantizedCache(loaded.model.config, STEPWISE_FORMAT)
    decoder, head = loaded.model.get_decoder(), loaded.model.get_output_embeddings()
    decoder(token_ids[None, :PROMPT], cache=cache, use_cache=True)
    timed = []
    for position in range(PROMPT, PROMPT + SCORED):
        began = time.perf_counter()
        head(decoder(token_ids[None, position : position + 1], cache=cache, use_cache=True).last_hidden_state)
        if (position - PROMPT) % TIMED_STEPS_EVERY == TIMED_STEPS_EVERY // 2:
            timed.append(time.perf_counter() - began)
    return statistics.fmean(timed) * SCORED


class OnePass(NamedTuple):
    candidate_s: float
    """What the stepwise run also computes: the logits of every decode position over the quantized cache."""
    with_reference_s: float
    """The same with the full-precision pass and the comparison of the two distributions."""


@torch.inference_mode()
def one_pass_seconds(scorer: DecodeScorer, token_ids: torch.Tensor) -> OnePass:
    """Median seconds of scoring the same positions in one pass; logits in chunks, as in an assessment."""
    kv_format = parse_format(STEPWISE_FORMAT)
    alone, whole = [], []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        reference = scorer.reference(token_ids)
        middle = time.perf_counter()
        candidate = scorer.candidate(token_ids, PROMPT, reference, kv_format)
        for start in range(0, SCORED, CHUNK_TOKENS):
            scorer.output_head(candidate.hidden[start : start + CHUNK_TOKENS])
        alone.append(time.perf_counter() - middle)
        compare_distributions(
            scorer.output_head, reference.hidden[PROMPT:-1], {"a": candidate.hidden[:-1]}, token_ids[PROMPT + 1 :]
        )
        whole.append(time.perf_counter() - began)
    return OnePass(statistics.median(alone), statistics.median(whole))


def formats_ratio(scorer: DecodeScorer, token_ids: torch.Tensor, prompt: int) -> dict[str, float]:
    """Cost of six formats on one document over 6 x its reference pass, with logits on both sides."""
    reference_times, format_times = [], []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        reference = scorer.reference(token_ids)
        scorer.output_head(reference.hidden[prompt:])
        middle = time.perf_counter()
        hidden = {
            name: scorer.candidate(token_ids, prompt, reference, parse_format(name)).hidden[:-1] for name in FORMATS
        }
        compare_distributions(scorer.output_head, reference.hidden[prompt:-1], hidden, token_ids[prompt + 1 :])
        reference_times.append(middle - began)
        format_times.append(time.perf_counter() - middle)
    reference_s, formats_s = statistics.median(reference_times), statistics.median(format_times)
    return {
        "reference_s": reference_s,
        "six_formats_s": formats_s,
        "ratio_to_six_references": formats_s / (len(FORMATS) * reference_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    loaded = load_model("smollm2-135m", announce=print)
    scorer = DecodeScorer(loaded.model, loaded.geometry)
    corpus = load_corpus("hansard")
    (long_document,) = text_documents(
        corpus, loaded.tokenizer, documents=1, prompt_tokens=PROMPT, scored_tokens=SCORED, seed=7
    )
    token_ids = torch.tensor(long_document.token_ids)
    one_pass = one_pass_seconds(scorer, token_ids)
    stepwise = stepwise_seconds(loaded, token_ids)
    result = {
        "format": STEPWISE_FORMAT,
        "positions": SCORED,
        "threads": torch.get_num_threads(),
        "one_pass_s": one_pass.candidate_s,
        "one_pass_with_reference_s": one_pass.with_reference_s,
        "stepwise_s": stepwise,
        "speedup": stepwise / one_pass.candidate_s,
        "speedup_with_reference": stepwise / one_pass.with_reference_s,
        "formats": {
            "shared prompt of 256, 256 scored": formats_ratio(scorer, token_ids[:512], 256),
            "no shared prompt, 512 scored": formats_ratio(scorer, token_ids[:512], 0),
        },
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"{SCORED} decode positions, {STEPWISE_FORMAT}: stepwise {stepwise:.1f} s; "
        f"one pass {one_pass.candidate_s:.2f} s, "
        f"{result['speedup']:.1f} times faster; with reference and comparison {one_pass.with_reference_s:.2f} s, "
        f"{result['speedup_with_reference']:.1f} times"
    )
    for name, figures in result["formats"].items():
        print(
            f"six formats, {name}: {figures['six_formats_s']:.2f} s, {figures['ratio_to_six_references']:.2f} x "
            f"(6 x reference pass of {figures['reference_s']:.2f} s)"
        )


if __name__ == "__main__":
    main()
