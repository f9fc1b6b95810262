"""Transient memory of one layer's call: predicted, recorded by the allocator, and resident in a fresh process.

    python -m benchmarks.transient [--model SmolLM2-135M] [--format NAME]... [--context 8000] [--batch 4]
                                   [--markdown FILE]

For each format and each kind of call (`core.transient_peak.Phase`). *Predicted* is the formula without torch. *Traced*
is what torch's allocator handed out during the call. *Resident* is the kernel's high-water mark over the resident
memory before the call, of a process that has run nothing but the fill, with the figure of what the cache keeps set off.
It counts pages of the kernel and not tensors: glibc is told to map every block of 64 KiB or more on its own
(MALLOC_MMAP_THRESHOLD_) and to give freed memory back at once, so that memory freed by the fill cannot serve the call.
What remains are smaller blocks, Python's objects and the matrix library's buffers. *By kernels* is what the allocator
handed out where attention goes the way that it takes by default, by compiled kernels where they read the format; their
own scratch memory, which is no tensor, is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

FORMATS = ("int4-g64", "int8-token-head", "kivi-4", "kivi-2", "fp8-e4m3", "nvfp4", "nf4-g64", "q8_0")
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    "MALLOC_TRIM_THRESHOLD_": "0",
    "MALLOC_TOP_PAD_": "0",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
_RESULT = "measured "
MIB = 2**20


def in_this_process(model: str, name: str, phase: str, context: int, batch: int) -> dict[str, int] | None:
    """Resident memory of one call, then the same call traced; None where the format has none of this kind."""
    import torch

    from kvassay.core.format_names import parse_format
    from kvassay.core.model_source import geometry_of
    from kvassay.core.transient_peak import Phase, layer_peak
    from kvassay.measures.layer_transient import LayerCall, layer_transient, resident_transient

    torch.set_num_threads(1)
    geometry = geometry_of(model)
    call = LayerCall(parse_format(name), geometry.layers[0], geometry.query_heads, batch, context)
    predicted = layer_peak(call.kv_format, 0, call.layer, call.query_heads, Phase(phase), tokens=context, batch=batch)
    resident = resident_transient(call, Phase(phase))
    traced = layer_transient(call, Phase(phase))
    by_kernels = layer_transient(call._replace(attention="auto"), Phase(phase))
    if predicted is None or traced is None or resident is None or by_kernels is None:
        return None
    return {
        "predicted": predicted,
        "traced": traced.transient_nbytes,
        "resident": resident,
        "default": by_kernels.transient_nbytes,
    }


def fresh(model: str, name: str, phase: str, context: int, batch: int) -> dict[str, int] | None:
    task = json.dumps([model, name, phase, context, batch])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transient", "--one", task],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **_ENVIRONMENT},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(_RESULT))
    return json.loads(line.removeprefix(_RESULT))


def table(model: str, formats: list[str], context: int, batch: int) -> str:
    from kvassay.core.format_names import parse_format
    from kvassay.core.ledger import predict_ledger
    from kvassay.core.model_source import geometry_of

    lines = [
        "| format | call | predicted MiB | traced MiB | resident MiB | traced of stored | by kernels MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in formats:
        stored = predict_ledger(geometry_of(model), parse_format(name), context, batch).persistent_nbytes
        for phase in ("prefill", "flush", "decode"):
            found = fresh(model, name, phase, context, batch)
            if found is not None:
                sizes = " | ".join(f"{found[each] / MIB:.2f}" for each in ("predicted", "traced", "resident"))
                share, by_kernels = found["traced"] / stored, found["default"] / MIB
                lines.append(f"| {name} | {phase} | {sizes} | {share:.2%} | {by_kernels:.3f} |")
                print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M")
    parser.add_argument("--format", action="append", default=[])
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(_RESULT + json.dumps(in_this_process(*json.loads(given.one))))
        return
    found = table(given.model, given.format or list(FORMATS), given.context, given.batch)
    if given.markdown:
        given.markdown.write_text(found + "\n")
    print(found)


if __name__ == "__main__":
    main()
