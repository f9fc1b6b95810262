"""`kvassay formats`: the formats that have a name, and what they store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from kvassay.cli.output import print_json, print_table
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.layout import stored_bits_per_value
from kvassay.errors import GeometryError

GRAMMAR = (
    "Any preset takes options: kivi-4,recent=32,sinks=4. Or write both sides: "
    "k=int8:token-head,v=int4:group64,recent=16,skip=0+1,exact=bf16"
)


def formats(
    *,
    head_dim: Annotated[int, Parameter(validator=Number(gte=1, lte=4096))] = 128,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Every named format with its stored bits a value: codes and metadata, before windows and sinks.

    Parameters
    ----------
    head_dim
        Head size for which stored bits are shown.
    json
        Print one JSON document.
    """
    rows = [_row(preset.name, head_dim) for preset in PRESETS]
    if json:
        print_json(rows)
        return 0
    print_table(
        ["format", "K bits", "V bits", "recent", "digest", "what it is"],
        [
            [r["name"], _bits(r["key_bits"]), _bits(r["value_bits"]), r["recent"], r["digest"][:12], r["source"]]
            for r in rows
        ],
        right=(1, 2, 3),
    )
    print(GRAMMAR)
    return 0


def _row(name: str, head_dim: int) -> dict:
    kv_format = parse_format(name)
    preset = next(preset for preset in PRESETS if preset.name == name)
    bits = []
    for spec in (kv_format.keys, kv_format.values):
        try:
            bits.append(stored_bits_per_value(spec, 1, head_dim))
        except GeometryError:
            bits.append(None)  # this format cannot serve this head size
    return {
        "name": name,
        "text": preset.text,
        "source": preset.source,
        "key_bits": bits[0],
        "value_bits": bits[1],
        "head_dim": head_dim,
        "sinks": kv_format.sinks,
        "recent": kv_format.recent,
        "digest": kv_format.digest,
    }


def _bits(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:.4g}"
