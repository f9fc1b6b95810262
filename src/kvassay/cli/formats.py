"""`kvassay formats`: the formats that have a name, the methods that formats are made of, and what they store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from kvassay.cli.output import print_json, print_table
from kvassay.core.format_names import PRESETS, parse_format
from kvassay.core.layout import stored_bits_per_value
from kvassay.core.methods import methods as method_table
from kvassay.core.side_names import parse_side
from kvassay.core.spec import QuantSpec
from kvassay.errors import GeometryError

GRAMMAR = (
    "Any preset takes options: kivi-4,recent=32,sinks=4. Or write both sides: "
    "k=int8:token-head,v=int4:group64,recent=16,skip=0+1,exact=bf16"
)


def formats(
    *,
    head_dim: Annotated[int, Parameter(validator=Number(gte=1, lte=4096))] = 128,
    methods: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Every named format with its stored bits a value: codes and metadata, before windows and sinks.

    Parameters
    ----------
    head_dim
        Head size for which stored bits are shown.
    methods
        List the methods instead, those of other installed packages included, each with examples of its codec texts.
    json
        Print one JSON document.
    """
    if methods:
        return _print_methods(head_dim, json)
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
    bits = [_stored_bits(spec, head_dim) for spec in (kv_format.keys, kv_format.values)]
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


def _print_methods(head_dim: int, json: bool) -> int:
    rows = [
        {
            "codec": text,
            "method": method.name,
            "family": method.family.value,
            "stored_bits": _stored_bits(parse_side(text), head_dim),
            "head_dim": head_dim,
            "summary": method.summary,
            "source": method.source,
        }
        for method in method_table().values()
        for text in method.examples
    ]
    if json:
        print_json(rows)
        return 0
    print_table(
        ["codec", "bits", "family", "what it is"],
        [[r["codec"], _bits(r["stored_bits"]), r["family"], r["summary"]] for r in rows],
        right=(1,),
    )
    print(GRAMMAR)
    return 0


def _stored_bits(spec: QuantSpec, head_dim: int) -> float | None:
    """None where the spec cannot serve this head size."""
    try:
        return stored_bits_per_value(spec, 1, head_dim)
    except GeometryError:
        return None


def _bits(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:.4g}"
