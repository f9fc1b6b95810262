"""Where the time of a quantized layer goes: conversion, bookkeeping, dequantization and attention, each timed apart.

    python -m benchmarks.stages --pack PACK [--format kivi-4]... [--context 4096]... [--rows 1]... [--repeats 5]
                                [--ungated] [--json FILE]

One layer on the CPU, swept over context lengths and rows (requests at once). Stages:

- `encode`: the layer's keys and values into codes and scales, all tokens at once;
- `append`: one token a row into the tail, which is block tables and page records and no conversion;
- `decode`: the codes back into floats, all tokens at once;
- `attention`: one query a row over what is stored, by the path that is named beside it, with the bytes that it reads.

A speed without quality is no result. A row has figures only if PACK, an evidence pack, says that the format met its
contract; else its figures are absent and the row says why. `--ungated` prints them without a pack, marked as no claim.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import LlamaConfig

from kvassay.cache import QuantizedCache
from kvassay.cache.attention import packed_attention
from kvassay.cli.output import print_table
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.records import Outcome, Role
from kvassay.formats.packed_kv import PackedFormat
from kvassay.pack.reader import PackContent, read_whole_pack

KV_HEADS, GROUPS, DIM = 4, 2, 64
STAGES = ("encode", "append", "decode", "attention")


class Gate(NamedTuple):
    passed: bool
    reason: str


class Row(NamedTuple):
    format: str
    context: int
    rows: int
    gate: str
    path: str
    """How attention read the cache; empty in a void row."""
    read_nbytes: int | None
    seconds: dict[str, tuple[float, float, float] | None]
    """By stage: median, least and most; None in a void row."""


def gate(content: PackContent | None, name: str) -> Gate:
    """Whether a pack says that this format, and no other of like name, met its contract as a candidate."""
    if content is None:
        return Gate(False, "void: no evidence pack was given")
    digest = parse_format(name).digest
    for verdict in content.verdicts.formats:
        if verdict.format_digest == digest and verdict.role is Role.CANDIDATE:
            passed = verdict.outcome is Outcome.MET
            words = verdict.outcome.value.replace("_", " ").upper()
            return Gate(passed, f"{words} in {content.contract.name}" if passed else f"void: {words}")
    return Gate(False, "void: the pack does not judge this format")


def measure(name: str, context: int, rows: int, repeats: int, found: Gate, ungated: bool) -> Row:
    if not (found.passed or ungated):
        return Row(name, context, rows, found.reason, "", None, dict.fromkeys(STAGES))
    config = LlamaConfig(
        num_hidden_layers=1,
        num_attention_heads=KV_HEADS * GROUPS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        hidden_size=KV_HEADS * GROUPS * DIM,
        max_position_embeddings=context + repeats + 8,
    )
    config._attn_implementation = "kvassay"
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, rows, KV_HEADS, context, DIM, generator=generator)
    new = torch.randn(2, rows, KV_HEADS, 1, DIM, generator=generator)
    query = torch.randn(rows, KV_HEADS * GROUPS, 1, DIM, generator=generator)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = False, GROUPS
    kv_format = parse_format(name)
    cache = QuantizedCache(config, kv_format, on_clip="count")
    with torch.no_grad():
        codec = PackedFormat(kv_format)
        packed = codec.encode(keys, values, layer=0, on_clip="count")
        cache.update(keys, values, 0)
        taken: dict[str, list[float]] = {stage: [] for stage in STAGES}
        for _ in range(repeats + 1):
            taken["encode"].append(_seconds(lambda: codec.encode(keys, values, layer=0, on_clip="count")))
            taken["decode"].append(_seconds(lambda: codec.decode(packed)))
            begin = time.perf_counter()
            seen = cache.update(new[0], new[1], 0)
            taken["append"].append(time.perf_counter() - begin)
            taken["attention"].append(
                _seconds(partial(packed_attention, module, query, *seen, None, scaling=DIM**-0.5))
            )
            del seen  # the next append would decode what is still held of this one
    ledger = cache.ledger()
    unread = ledger.owner_nbytes(Owner.PADDING) + ledger.owner_nbytes(Owner.BLOCK_TABLE)
    told = {stage: (statistics.median(all_[1:]), min(all_[1:]), max(all_[1:])) for stage, all_ in taken.items()}
    reason = found.reason if found.passed else "none: no claim"
    path = cache.explain()[0].last.value
    return Row(name, context, rows, reason, path, ledger.persistent_nbytes - unread, dict(told))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--format", action="append", dest="formats")
    parser.add_argument("--context", action="append", type=int, dest="contexts")
    parser.add_argument("--rows", action="append", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ungated", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    content = read_whole_pack(given.pack) if given.pack else None
    found = [
        measure(name, context, rows, given.repeats, gate(content, name), given.ungated)
        for name in given.formats or ["f16", "int8-token-head", "kivi-4"]
        for context in given.contexts or [1024, 4096]
        for rows in given.rows or [1, 4]
    ]
    head = ["format", "context", "rows", *(f"{stage} ms" for stage in STAGES), "read MiB", "path", "gate"]
    print(f"medians of {given.repeats}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print_table(head, [_cells(row) for row in found], right=range(1, 8))
    if given.json:
        given.json.write_text(json.dumps([row._asdict() for row in found], indent=2) + "\n")
    return 0


def _cells(row: Row) -> list[object]:
    times = [row.seconds[stage] for stage in STAGES]
    shown = ["-" if each is None else f"{1000 * each[0]:.3g}" for each in times]
    read = "-" if row.read_nbytes is None else f"{row.read_nbytes / 2**20:.3g}"
    return [row.format, row.context, row.rows, *shown, read, row.path or "-", row.gate]


if __name__ == "__main__":
    sys.exit(main())
