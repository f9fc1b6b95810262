"""`kvassay bytes`: what a cache of a format takes for a model, byte by byte, without running it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.output import nbytes_text, print_json, print_table
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.format_names import parse_format
from kvassay.core.geometry import Owner
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.core.model_source import geometry_of
from kvassay.core.serving import check_serves
from kvassay.core.transient_peak import PATH_WORDS, TransientPeaks

Count = Annotated[int, whole_number(1, 1_000_000_000)]


def bytes_command(
    model: str,
    /,
    *,
    format: Annotated[list[str], Parameter(negative=())],
    context: Count = 4096,
    batch: Count = 1,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Persistent and transient bytes of a KV cache, computed from the model's shape; no torch, no weights read.

    Parameters
    ----------
    model
        Built-in name, folder with config.json, .gguf file, or hub id.
    format
        KV format, for example kivi-4 or "k=int8:token-head,v=int4:group64"; repeat it to compare several.
    context
        Tokens in each row.
    batch
        Rows.
    json
        Print one JSON document.
    """
    geometry = geometry_of(model)
    formats = [parse_format(name) for name in format]
    for kv_format in formats:
        check_serves(kv_format, geometry)
    ledgers = [predict_ledger(geometry, kv_format, context, batch) for kv_format in formats]
    if json:
        print_json([ledger.to_json() for ledger in ledgers])
        return 0
    for ledger in ledgers:
        _print_ledger(model, ledger)
    print("Assumptions:")
    for assumption in dict.fromkeys(text for ledger in ledgers for text in ledger.assumptions):
        print(f"  {assumption}")
    return 0


def _print_ledger(model: str, ledger: ByteLedger) -> None:
    print(f"{ledger.format_name} for {model}: {ledger.tokens} tokens x {ledger.batch} rows ({ledger.basis.value})")
    rows = [
        [owner.value, f"{ledger.keys_nbytes.get(owner, 0):,}", f"{ledger.values_nbytes.get(owner, 0):,}"]
        for owner in Owner
        if ledger.owner_nbytes(owner)
    ]
    keys, values = sum(ledger.keys_nbytes.values()), sum(ledger.values_nbytes.values())
    print_table(["owner", "keys B", "values B"], [*rows, ["total", f"{keys:,}", f"{values:,}"]], right=(1, 2))
    print(
        f"persistent {ledger.persistent_nbytes:,} B ({nbytes_text(ledger.persistent_nbytes)}), "
        f"{ledger.persistent_nbytes_per_token:,.1f} B a token, {16 * ledger.ratio_to_float16:.4g} bits a value: "
        f"{ledger.ratio_to_float16:.4f} of 16 bit, {ledger.persistent_nbytes / ledger.float32_nbytes:.4f} of float32"
    )
    for phases in (ledger.transient_phases, ledger.transient_in_torch):
        assert phases is not None, "a computed ledger has them"
        _print_phases(phases)
    print()


def _print_phases(phases: TransientPeaks) -> None:
    calls = [("prefill", phases.prefill_nbytes), ("flush", phases.flush_nbytes), ("decode", phases.decode_nbytes)]
    said = ", ".join(f"{call} {nbytes:,} B ({nbytes_text(nbytes)})" for call, nbytes in calls if nbytes is not None)
    print(f"transient peak of a call {PATH_WORDS[phases.path]}, {phases.basis.value}: {said}")
