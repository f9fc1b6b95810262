"""Tokens per second of SmolLM2-135M in decoding, by cache; arms in turns in one process.

    python -m benchmarks.decode [--context 8000] [--batch 1] [--rounds 9] [--threads 2] [--arm NAME]...
                                [--markdown FILE] [--json FILE]

Each round gives every arm a turn of some steps (at least two, and as many as fit in `--turn-seconds`), whose first is
not counted, since another arm's bytes were in the processor's caches. A figure is the median of the rounds' medians
with their range. Caches hold Gaussian keys and values of the model's own mean and spread a channel; llama.cpp ran a
prompt. The attention share is the median over rounds of one more step each, timed by hooks: what attention modules take
outside their projections, cache included. An arm that does not run says why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.cache.measure import kv_statistics
from benchmarks.decode.arms import DEFAULT_ARMS, Decoder, Models, new_decoder
from benchmarks.decode.shape import Shape
from kvassay.core.model_source import SourceKind
from kvassay.engines.transformers.loading import load_model
from kvassay.kernels.native import instruction_set, native_state


def turn(decoder: Decoder, seconds: float) -> float:
    """Median seconds of a step."""
    decoder.step()
    began, steps = time.perf_counter(), []
    while not steps or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        decoder.step()
        steps.append(time.perf_counter() - before)
    return statistics.median(steps)


def measure(decoders: dict[str, Decoder], rounds: int, turn_seconds: float, batch: int) -> list[dict[str, Any]]:
    """One row an arm."""
    medians: dict[str, list[float]] = {arm: [] for arm in decoders}
    shares: dict[str, list[float]] = {arm: [] for arm in decoders}
    names = list(decoders)
    for index in range(rounds):
        shift = index * len(names) // rounds
        for arm in names[shift:] + names[:shift]:
            medians[arm].append(turn(decoders[arm], turn_seconds))
            if (share := decoders[arm].attention_share()) is not None:
                shares[arm].append(share)
        print(f"round {index + 1} of {rounds}", file=sys.stderr, flush=True)
    return [
        {
            "arm": arm,
            "rounds": rounds,
            "step_ms": 1e3 * statistics.median(medians[arm]),
            "step_ms_rounds": [1e3 * each for each in medians[arm]],
            "tokens_per_s": batch / statistics.median(medians[arm]),
            "cache_mib": decoder.cache_nbytes / 2**20,
            "attention_share": statistics.median(shares[arm]) if shares[arm] else None,
        }
        for arm, decoder in decoders.items()
    ]


def markdown(rows: list[dict[str, Any]], shape: Shape) -> str:
    lines = [
        f"Batch {shape.batch}, context {shape.context:,}:",
        "",
        "| weights/cache | tokens/s | ms a step (rounds) | cache MiB | attention's share of a step |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if "did_not_run" in row:
            lines.append(f"| {row['arm']} | did not run: {row['did_not_run']} | | | |")
            continue
        share = "not measured" if row["attention_share"] is None else f"{100 * row['attention_share']:.0f}%"
        lines.append(
            f"| {row['arm']} | {row['tokens_per_s']:.1f} | {row['step_ms']:.1f} ({min(row['step_ms_rounds']):.1f} to "
            f"{max(row['step_ms_rounds']):.1f}) | {row['cache_mib']:.1f} | {share} |"
        )
    return "\n".join(lines) + "\n"


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn-seconds", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--arm", action="append", help="repeat it; all if left out")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    shape = Shape(asked.batch, asked.context)
    loaded = load_model(asked.model)
    gguf = loaded.source.path if loaded.source.kind is SourceKind.GGUF else None
    with torch.inference_mode():
        sample = torch.randint(0, loaded.tokenizer.vocab_size, (1, 256), generator=torch.Generator().manual_seed(31))
        layers = kv_statistics(loaded.model, sample)
    rows: list[dict[str, Any]] = []
    decoders: dict[str, Decoder] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = Models(loaded.model, gguf, Path(folder))
        for arm in asked.arm or DEFAULT_ARMS:
            began = time.perf_counter()
            try:
                with torch.inference_mode():
                    decoders[arm] = new_decoder(arm, shape, models, layers)
            except (ModuleNotFoundError, ValueError, RuntimeError) as error:
                rows.append({"arm": arm, "did_not_run": str(error)})
            print(f"filled {arm} in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        rows = measure(decoders, asked.rounds, asked.turn_seconds, shape.batch) + rows
    kernels = instruction_set() if native_state().missing is None else "none"
    settings = {
        "command": " ".join(["python -m benchmarks.decode", *(sys.argv[1:] if given is None else given)]),
        "kernels": kernels,
        "torch": torch.__version__,
        "threads": asked.threads,
    }
    table = markdown(rows, shape)
    print(f"{settings['command']}: kernels {kernels}, torch {torch.__version__}, {asked.threads} threads\n\n{table}")
    if asked.markdown is not None:
        asked.markdown.write_text(f"`{settings['command']}`\n\n{table}")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"settings": settings, "arms": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
