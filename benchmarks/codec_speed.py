"""Encode and decode throughput of every format of the method table, one thread, in MB of float32 values a second.

    python benchmarks/codec_speed.py [--json] [--filter TEXT]

Input: Gaussian [1, 8, 1024, 128] (4 MiB) a call; median of the repetitions. A copy of the same array in the same run is
the yardstick, since memory bandwidth of shared machines moves.

Below 30 MB/s is lloyd-qjl alone: its Gaussian sketch is a sum over channels in a fixed order, channel by channel, so
that codes do not depend on the shape of the call. It is a negative control, so nobody waits for it in earnest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from kvassay.core.layout import stored_bits_per_value
from kvassay.core.methods import methods
from kvassay.core.side_names import parse_side
from kvassay.errors import KvassayError
from kvassay.formats import quantizer

SHAPE = (1, 8, 1024, 128)
REPETITIONS = 7


def megabytes_a_second(call: Callable[[], object], nbytes: int) -> float:
    call()
    times = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return nbytes / statistics.median(times) / 1e6


@torch.inference_mode()
def measure(side: str, values: torch.Tensor) -> dict[str, object]:
    spec = parse_side(side)
    codec = quantizer(spec)
    calibration = codec.calibrate(values) if spec.needs_calibration else None
    streams = codec.encode(values, calibration).streams
    nbytes = values.numel() * values.element_size()
    return {
        "side": side,
        "stored_bits": stored_bits_per_value(spec, SHAPE[1], SHAPE[3]),
        "encode_mb_s": round(megabytes_a_second(lambda: codec.encode(values, calibration), nbytes)),
        "decode_mb_s": round(megabytes_a_second(lambda: codec.decode(streams, torch.float32, calibration), nbytes)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--filter", default="", help="only sides that contain this text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    copied = round(megabytes_a_second(values.clone, values.numel() * values.element_size()))
    rows = []
    for side in (example for method in methods().values() for example in method.examples):
        if arguments.filter not in side:
            continue
        try:
            rows.append(measure(side, values))
        except KvassayError as error:
            print(f"{side}: not measured: {error}")
            continue
        if not arguments.json:
            row = rows[-1]
            print(
                f"{side:36} {row['stored_bits']:7.4g} bits  encode {row['encode_mb_s']:6} MB/s  "
                f"decode {row['decode_mb_s']:6} MB/s",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"shape": SHAPE, "threads": 1, "copy_mb_s": copied, "rows": rows}, indent=1))
    else:
        print(f"copy of the same array: {copied} MB/s")


if __name__ == "__main__":
    main()
