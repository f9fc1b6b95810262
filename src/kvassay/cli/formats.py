"""`kvassay formats`: named formats and the methods they are made of, what they store, and where they come from."""

from __future__ import annotations

from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from kvassay.cli.format_details import HeadDim, KvHeads, engine_rows, show, side_details
from kvassay.cli.output import print_json, print_table
from kvassay.core.format_names import PRESETS, Preset, parse_format
from kvassay.core.methods import method_of
from kvassay.core.methods import methods as method_table
from kvassay.core.presets import Conformance
from kvassay.core.side_names import parse_side

GRAMMAR = (
    "Any preset takes options: kivi-4,recent=32,sinks=4. Or write both sides: "
    "k=int8:token-head,v=int4:group64,recent=16,skip=0+1,exact=bf16"
)
MARKS = {Conformance.PROVEN: "=", Conformance.READ: "~", Conformance.NOT_EQUAL: "≠"}

formats = cyclopts.App(
    name="formats", help="Every named format with its stored bits a value; `formats show NAME` explains one."
)
formats.command(show)


@formats.default
def list_formats(
    *,
    head_dim: HeadDim = 128,
    kv_heads: KvHeads = 8,
    methods: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Every named format with its stored bits a value: codes and metadata, before windows and sinks.

    Parameters
    ----------
    head_dim
        Head size for which stored bits are shown.
    kv_heads
        KV heads of a layer, likewise; they share the scales of a format with one scale a token (int8-token).
    methods
        List the methods instead, those of other installed packages included, each with examples of its codec texts.
    json
        Print one JSON document.
    """
    if methods:
        return _print_methods(head_dim, kv_heads, json)
    rows = [_row(preset, head_dim, kv_heads) for preset in PRESETS]
    if json:
        print_json(rows)
        return 0
    print_table(
        ["format", "K bits", "V bits", "recent", "family", "engines", "what it is"],
        [
            [
                r["name"],
                _bits(r["key_bits"]),
                _bits(r["value_bits"]),
                r["recent"],
                _families(r),
                _engines(r),
                r["source"],
            ]
            for r in rows
        ],
        right=(1, 2, 3),
    )
    print(f"\nBits are those of a head of {head_dim} channels and {kv_heads} KV heads (--head-dim, --kv-heads).")
    print("How an engine's codes compare with ours (notes: kvassay formats show NAME):")
    for conformance, mark in MARKS.items():
        print(f"  {mark} {conformance.value}")
    print("Methods and their sources:")
    used = {side["method"]: side for row in rows for side in (row["keys"], row["values"])}
    for name, side in used.items():
        print(f"  {name}: {side['summary']}. {side['method_source']}")
    print(GRAMMAR)
    return 0


def _row(preset: Preset, head_dim: int, kv_heads: int) -> dict[str, Any]:
    kv_format = parse_format(preset.name)
    keys, values = (side_details(spec, head_dim, kv_heads) for spec in (kv_format.keys, kv_format.values))
    return {
        "name": preset.name,
        "text": preset.text,
        "source": preset.source,
        "families": list(dict.fromkeys(method_of(spec).family.value for spec in (kv_format.keys, kv_format.values))),
        "engines": engine_rows(preset),
        "key_bits": keys["stored_bits"],
        "value_bits": values["stored_bits"],
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "sinks": kv_format.sinks,
        "recent": kv_format.recent,
        "exact_dtype": kv_format.exact_dtype,
        "digest": kv_format.digest,
        "keys": keys,
        "values": values,
    }


def _print_methods(head_dim: int, kv_heads: int, json: bool) -> int:
    rows = [
        {
            "codec": text,
            "method": method.name,
            "family": method.family.value,
            "stored_bits": side_details(parse_side(text), head_dim, kv_heads)["stored_bits"],
            "head_dim": head_dim,
            "kv_heads": kv_heads,
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


def _bits(bits: float | None) -> str:
    return "-" if bits is None else f"{bits:.4g}"


def _families(row: dict[str, Any]) -> str:
    return " / ".join(row["families"])


def _engines(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{MARKS[Conformance[each['conformance']]]} {each['engine']} {each['name']}" for each in row["engines"]
    )
