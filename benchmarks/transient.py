"""Transient memory of one layer's call: predicted, recorded by the allocator, and resident in a fresh process.

    python -m benchmarks.transient [--model SmolLM2-135M | --layer KV_HEADS,HEAD_DIM,QUERY_HEADS] [--format NAME]...
                                   [--context 8000] [--batch 4] [--markdown FILE]

For each format, each path (`core.transient_peak.TransientPath`) and each kind of call (`Phase`). *Predicted* is the
formula without torch; on the kernels' path it has their own memory in it, of one thread. *Tensors* is the part of it
that *traced* sees, which is what torch's allocator handed out during the call. *Resident* is the kernel's high-water
mark over the resident memory after the call, of a process that has run nothing but the fill. It counts pages of 4 KiB
and not tensors: glibc is told to map every block of 64 KiB or more on its own (MALLOC_MMAP_THRESHOLD_) and to give
freed memory back at once, so that memory freed by the fill cannot serve the call. What remains are smaller blocks,
Python's objects and the matrix library's buffers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FORMATS = ("int4-g64", "int8-token-head", "kivi-4", "kivi-2", "fp8-e4m3", "nvfp4", "nf4-g64", "q8_0")
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
_RESULT = "measured "
_KIB = 2**10


class Case(NamedTuple):
    """One line of the table."""

    layer: str
    """A model's name, or KV_HEADS,HEAD_DIM,QUERY_HEADS."""
    name: str
    path: str
    phase: str
    context: int
    batch: int


def in_this_process(case: Case) -> dict[str, int] | None:
    """Resident memory of one call, then the same call traced; None where the format has none of this kind."""
    import torch

    from kvassay.cache import side_codec
    from kvassay.cache.native_rows import NativeRows
    from kvassay.core.format_names import parse_format
    from kvassay.core.geometry import LayerGeometry
    from kvassay.core.model_source import geometry_of
    from kvassay.core.transient_peak import Phase, TransientPath, layer_peak
    from kvassay.measures.layer_transient import LayerCall, layer_transient, resident_transient

    torch.set_num_threads(1)
    path, phase = TransientPath(case.path), Phase(case.phase)
    if path is TransientPath.TORCH:
        side_codec.encodes = lambda spec: False
        NativeRows.is_there = staticmethod(lambda: False)
    if "," in case.layer:
        heads, dim, query_heads = map(int, case.layer.split(","))
        layer = LayerGeometry(kv_heads=heads, head_dim=dim, value_dim=dim)
    else:
        geometry = geometry_of(case.layer)
        layer, query_heads = geometry.layers[0], geometry.query_heads
    attention = "tiled" if path is TransientPath.TORCH else "auto"
    call = LayerCall(parse_format(case.name), layer, query_heads, case.batch, case.context, attention=attention)
    predicted, tensors = (
        layer_peak(
            call.kv_format,
            0,
            layer,
            query_heads,
            phase,
            path,
            tokens=call.tokens,
            batch=call.batch,
            counts_scratch=counts,
        )
        for counts in (True, False)
    )
    resident = resident_transient(call, phase)
    traced = layer_transient(call, phase)
    if predicted is None or tensors is None or traced is None or resident is None:
        return None
    return {"predicted": predicted, "tensors": tensors, "traced": traced.transient_nbytes, "resident": resident}


def fresh(case: Case) -> dict[str, int] | None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transient", "--one", json.dumps(case)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **_ENVIRONMENT},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(_RESULT))
    return json.loads(line.removeprefix(_RESULT))


def table(layer: str, formats: list[str], context: int, batch: int) -> str:
    from kvassay.core.transient_peak import Phase, TransientPath

    lines = [
        "| format | call | path | predicted KiB | of it tensors | traced | resident |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in formats:
        for phase in Phase:
            for path in TransientPath:
                found = fresh(Case(layer, name, path.value, phase.value, context, batch))
                if found is not None:
                    sizes = [f"{found[each] / _KIB:,.1f}" for each in ("predicted", "tensors", "traced", "resident")]
                    lines.append(f"| {name} | {phase} | {path} | {' | '.join(sizes)} |")
                    print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--layer", help="KV_HEADS,HEAD_DIM,QUERY_HEADS of a layer in the place of a model's first")
    parser.add_argument("--format", action="append", default=[])
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(_RESULT + json.dumps(in_this_process(Case(*json.loads(given.one)))))
        return
    found = table(given.layer or given.model, given.format or list(FORMATS), given.context, given.batch)
    if given.markdown:
        given.markdown.write_text(found + "\n")
    print(found)


if __name__ == "__main__":
    main()
