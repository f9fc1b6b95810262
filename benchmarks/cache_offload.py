"""Seconds of one decode step that reads a cache with offloaded pages, and bytes moved for it.

    python benchmarks/cache_offload.py [--tokens 8000] [--steps 5] [--folder FOLDER] [--json]

SmolLM2's geometry (30 layers, 3 KV heads of 64), kivi-4 without a model: a step appends one random token to each layer
and reads its keys and values as float32, so there is no attention to hide reading behind. Arms: all pages in memory; a
quarter or half; with and without reading ahead; with the operating system's cache of the file as it comes
(warm) and emptied before every step (cold). Arms are run in turn, step by step, since speed of shared machines moves:
median and range over the steps. One step before them is not counted.

`--spread first-layers` keeps the first layers whole in memory and streams the others, the obvious way to hold a fixed
set; docs/design/offload.md says what it is compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import NamedTuple

import torch
from transformers import LlamaConfig

from kvassay.cache import Offload, QuantizedCache
from kvassay.cache.residency import Residency

LAYERS, KV_HEADS, HEAD_DIM = 30, 3, 64
FORMAT = "kivi-4"


class Arm(NamedTuple):
    """One cache and how it is read."""

    resident_share: float
    """Of the coded pages; 1 is a cache without offload."""
    read_ahead: bool
    cold: bool

    @property
    def name(self) -> str:
        if self.resident_share == 1:
            return "all in memory"
        ahead = "with reading ahead" if self.read_ahead else "without"
        return f"{self.resident_share:.0%} resident, {ahead}, {'cold' if self.cold else 'warm'}"


ARMS = (
    Arm(1, False, False),
    *(Arm(share, ahead, cold) for share in (0.25, 0.5) for cold in (False, True) for ahead in (False, True)),
)


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        hidden_size=9 * HEAD_DIM,
    )


def append(cache: QuantizedCache, layers: int, tokens: int) -> None:
    for layer in range(layers):
        states = torch.randn(2, 1, KV_HEADS, tokens, HEAD_DIM)
        cache.update(states[0], states[1], layer)


def coded_nbytes(cache: QuantizedCache) -> int:
    return sum(run.pool.nbytes for layer in cache.layers for store in layer.stores for run in store.coded_pages)


def empty_os_cache(offload: Offload) -> None:
    """Have the operating system forget what it holds of the file, so that reads reach the disk."""
    fd = offload._residency.backing.fileno()
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@torch.inference_mode()
def measure(tokens: int, layers: int, steps: int, folder: str, arms: tuple[Arm, ...] = ARMS) -> list[dict[str, object]]:
    plain = QuantizedCache(config(layers), FORMAT)
    append(plain, layers, tokens)
    coded = coded_nbytes(plain)
    del plain
    caches: dict[Arm, tuple[QuantizedCache, Offload | None]] = {}
    for arm in arms:
        offload = None
        if arm.resident_share < 1:
            offload = Offload(int(coded * arm.resident_share), folder, read_ahead=arm.read_ahead)
        torch.manual_seed(0)
        cache = QuantizedCache(config(layers), FORMAT, offload=offload)
        append(cache, layers, tokens)
        append(cache, layers, 1)
        caches[arm] = (cache, offload)
    seconds: dict[Arm, list[float]] = {arm: [] for arm in arms}
    before = {arm: offload.counts() for arm, (_, offload) in caches.items() if offload is not None}
    for _ in range(steps):
        for arm, (cache, offload) in caches.items():
            if offload is not None and arm.cold:
                empty_os_cache(offload)
            began = time.perf_counter()
            append(cache, layers, 1)
            seconds[arm].append(time.perf_counter() - began)
    rows: list[dict[str, object]] = []
    for arm, (_, offload) in caches.items():
        row: dict[str, object] = {
            "arm": arm.name,
            "step_s": [round(value, 4) for value in seconds[arm]],
            "median_s": round(statistics.median(seconds[arm]), 4),
        }
        if offload is not None:
            counts, first = offload.counts(), before[arm]
            pages = counts.read_ahead_hits - first.read_ahead_hits, counts.read_ahead_misses - first.read_ahead_misses
            row |= {
                "limit_nbytes": counts.limit_nbytes,
                "peak_resident_nbytes": counts.peak_resident_nbytes,
                "offloaded_nbytes": counts.offloaded_nbytes,
                "nbytes_in_a_step": (counts.nbytes_in - first.nbytes_in) // steps,
                "nbytes_out_a_step": (counts.nbytes_out - first.nbytes_out) // steps,
                "reading_s_a_step": round((counts.seconds_in - first.seconds_in) / steps, 4),
                "waited_s_a_step": round((counts.seconds_waited - first.seconds_waited) / steps, 4),
                "hit_share": round(pages[0] / max(1, sum(pages)), 3),
                "prefill_nbytes_out": first.nbytes_out,
                "prefill_out_s": round(first.seconds_out, 3),
            }
        rows.append({"coded_nbytes": coded, **row})
    return rows


def keep_first_layers() -> None:
    """Have the last layer lose its pages first."""
    Residency._rank = lambda self, member: -member.layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--spread", choices=("even", "first-layers"), default="even")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.spread == "first-layers":
        keep_first_layers()
    torch.set_num_threads(1)
    rows = measure(arguments.tokens, arguments.layers, arguments.steps, arguments.folder)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"coded pages {rows[0]['coded_nbytes']:,} bytes; {arguments.steps} steps an arm")
    for row in rows:
        low, high = min(row["step_s"]), max(row["step_s"])
        line = f"{row['arm']:44} {row['median_s']:7.3f} s ({low:.3f} to {high:.3f})"
        if "limit_nbytes" in row:
            line += (
                f"  in {row['nbytes_in_a_step'] / 1e6:6.2f} MB a step in {row['reading_s_a_step']:.3f} s, "
                f"waited {row['waited_s_a_step']:.3f} s, read ahead {row['hit_share']:.0%}"
            )
        print(line)


if __name__ == "__main__":
    main()
