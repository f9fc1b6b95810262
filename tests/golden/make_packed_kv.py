"""Golden vectors of every example of the method table, and the schema of the packed-KV header.

    python tests/golden/make_packed_kv.py                       # add missing rows, drop rows without an example
    python tests/golden/make_packed_kv.py --replace int4:group32  # also rewrite these rows, whose bytes changed
    python tests/golden/make_packed_kv.py --check               # write nothing; exit 1 where anything differs

A row that exists is never rewritten silently: if its bytes move, stored caches and files decode to other numbers, and
`LAYOUT_VERSION` must be raised. So `--replace` names each such row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvassay.core.format_names import parse_format
from kvassay.core.methods import methods
from kvassay.core.packed_layout import PackedHeader
from kvassay.formats import quantizer
from kvassay.formats.packed_file import array_bytes
from tests.golden.packed_kv_input import DIM, LEAST_TOKENS, fixed_input

GOLDEN = Path(__file__).with_name("packed_kv.json")
SCHEMA = Path(__file__).parents[2] / "docs" / "spec" / "packed-kv.schema.json"
COMMAND = "python tests/golden/make_packed_kv.py"

DECODE_ORDER_MAY_VARY: dict[str, str] = {}
"""Method -> why its decoded values may differ in last digits between platforms; only its stored arrays are hashed."""


def examples() -> list[str]:
    return [example for method in methods().values() for example in method.examples]


def golden_row(example: str) -> dict[str, Any]:
    """SHA-256 of each stored array of the fixed input, and of the values decoded from them."""
    spec = parse_format(f"kv={example}").keys
    block = spec.tokens_per_block
    x = torch.from_numpy(fixed_input(-(-LEAST_TOKENS // block) * block))
    codec = quantizer(spec)
    calibration = codec.calibrate(x) if spec.needs_calibration else None
    encoded = codec.encode(x, calibration)
    decoded = codec.decode(encoded.streams, torch.float32, calibration)
    static = {} if calibration is None else calibration.parameters
    return {
        "static": {name: _sha256(array) for name, array in sorted(static.items())},
        "streams": {name: _sha256(array) for name, array in encoded.streams.items()},
        "clipped_values": encoded.clipped_values,
        "decoded_float32": None if spec.method in DECODE_ORDER_MAY_VARY else _sha256(decoded),
    }


def read_golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def golden_text(rows: dict[str, Any]) -> str:
    return json.dumps(rows, indent=2, sort_keys=True) + "\n"


def schema_text() -> str:
    """JSON Schema of the header that a packed-KV file carries."""
    schema = PackedHeader.model_json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvassay packed-KV header, version 1"}
    return json.dumps({**head, **{k: v for k, v in schema.items() if k not in head}}, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replace", nargs="+", default=[], metavar="EXAMPLE")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    old = read_golden()
    new = {example: golden_row(example) for example in examples()}
    moved = [example for example in new if example in old and old[example] != new[example]]
    if not options.check:
        GOLDEN.write_text(golden_text({**new, **{each: old[each] for each in moved if each not in options.replace}}))
        SCHEMA.write_text(schema_text())
    added, dropped = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    refused = [example for example in moved if example not in options.replace]
    for what, which in (("added", added), ("dropped", dropped), ("moved", moved), ("NOT replaced", refused)):
        if which:
            print(f"{what}: {', '.join(which)}")
    return 1 if refused or (options.check and (added or dropped)) else 0


def _sha256(array: torch.Tensor) -> str:
    return hashlib.sha256(array_bytes(array)).hexdigest()


if __name__ == "__main__":
    assert DIM == 64, "the examples of the method table are made for head size 64"
    sys.exit(main(sys.argv[1:]))
