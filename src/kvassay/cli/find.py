"""`kvassay find`: the smallest format that meets a contract, and how to run it."""

from __future__ import annotations

from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from kvassay.cli.assess import default_out, outcome_word, say_plan
from kvassay.cli.output import print_json, print_table
from kvassay.cli.progress_display import ProgressDisplay
from kvassay.cli.torch_extra import require_torch
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.contract import parse_contract, read_contract_text
from kvassay.errors import UsageError, printable

if TYPE_CHECKING:
    from kvassay.find.records import EngineRow, FormatRow, Found, Winner


def find(
    model: str,
    /,
    *,
    contract: Path,
    target: Literal["bytes", "speed"] = "bytes",
    ladder: str | None = None,
    widths: str | None = None,
    by: Literal["layer", "head"] = "layer",
    format: Annotated[list[str] | None, Parameter(negative=())] = None,
    sensitivities: Path | None = None,
    pilot_documents: Annotated[int, whole_number(1, 64)] = 2,
    pilot_prompt: Annotated[int, whole_number(16, 131072)] = 128,
    pilot_scored: Annotated[int, whole_number(8, 131072)] = 64,
    judged: Annotated[int, whole_number(1, 20)] = 6,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find the smallest format that meets a contract. Exit code 0 found, 1 the safest is breached, 3 inconclusive.

    Parameters
    ----------
    model
        Built-in name, transformers folder, .gguf file, or hub id.
    contract
        TOML file with bounds and controls; its candidates are searched with all others.
    target
        What is made small: bytes a token by the ledger, or the time of decode attention in compiled kernels here.
    ladder
        Family whose widths are given to layers by isolated KL, with {bits} for the width:
        'k=int{bits}:channel32,v=int{bits}:group32,recent=32'. Default: kv=exl3-{bits}, or the first that fits.
    widths
        Its widths, for example 2,3,4,8,16; 16 is a plain float.
    by
        What gets a width of its own: keys and values of a layer, or of each KV head of it.
    format
        A further format to search; repeat it for several.
    sensitivities
        JSON file of isolated KL: read if it is there, else measured and written, so that a second search needs no run.
    pilot_documents
        Documents of the pilot, on which everything is chosen; the verdict uses others.
    pilot_prompt
        Tokens of history of each.
    pilot_scored
        Decode steps of each.
    judged
        Most formats of the judged sequence.
    out
        Folder for the evidence pack; must not exist. The search's record is written beside it, as OUT.find.json.
    json
        Print one JSON document.
    """
    text = read_contract_text(contract)
    loaded = parse_contract(text, str(contract))
    require_torch("kvassay find")
    from kvassay.find.pilot import PilotSize
    from kvassay.find.search import SearchOptions, run_search

    options = SearchOptions(
        target=target,
        ladder=ladder,
        widths=None if widths is None else _widths(widths),
        by=by,
        formats=tuple(format or ()),
        sensitivities=sensitivities,
        pilot=PilotSize(pilot_documents, pilot_prompt, pilot_scored),
        most_judged=judged,
    )
    folder = out or default_out(model, f"{loaded.name}-find")
    with ProgressDisplay(quiet=json) as progress:
        found = run_search(model, text, folder, options, progress, None if json else say_plan)
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        print_found(found)
    return found.exit_code


def print_found(found: Found) -> None:
    """Frontier, winner, and how to run it."""
    speed = found.timing is not None
    header = ["format", "bits", "B a token", *(["attention µs"] if speed else []), "pilot KL", "predicted",
              "judged KL", "interval", "verdict"]  # fmt: skip
    shown = [row for row in found.formats if row.on_frontier or row.judged]
    print_table(header, [_cells(row, speed) for row in shown], right=range(1, len(header) - 1))
    hidden = len(found.formats) - len(shown)
    documents = next((row.kl.documents for row in found.formats if row.kl is not None), None)
    judged_on = "no text was judged" if documents is None else f"judged on {documents} others"
    print(
        f"\nBytes at {found.context_tokens} tokens; chosen on {len(found.pilot['documents'])} pilot documents, "
        f"{judged_on}; {hidden} formats that store and lose more than one above are left out, "
        f"{len(found.dropped)} could not be searched (--json lists both)."
    )
    if found.timing is not None:
        print(
            f"Attention time: measured on this machine, {found.timing['threads']} threads, {found.timing['rounds']} "
            f"rounds; {found.timing['what']}."
        )
    if found.winner is not None:
        _print_winner(found.winner)
    print(f"\n{outcome_word(found.outcome)} (exit code {found.exit_code}): {found.reason}")
    print(f"evidence {printable(found.out)}")
    print(printable(f"verify with: kvassay verify {quote(found.out)} --root {found.root}"))


def _cells(row: FormatRow, speed: bool) -> list[str]:
    kl = row.kl
    between = "-" if kl is None or kl.lower is None or kl.upper is None else f"{kl.lower:.3g} to {kl.upper:.3g}"
    time = [] if not speed else ["-" if row.attention_us is None else f"{row.attention_us.median:,.0f}"]
    return [
        row.format,
        f"{row.stored_bits:.3f}",
        f"{row.nbytes_per_token:,.0f}",
        *time,
        f"{row.pilot_kl_nats:.3g}",
        "-" if row.predicted_kl_nats is None else f"{row.predicted_kl_nats:.3g}",
        "-" if kl is None else f"{kl.estimate:.3g}",
        between,
        "not judged" if row.outcome is None else outcome_word(row.outcome),
    ]


def _print_winner(winner: Winner) -> None:
    print(f"\nwinner   {winner.format}\n")
    print("kvassay, measured here:")
    for line in (*winner.kvassay_python, *winner.kvassay_commands):
        print(f"  {printable(line)}")
    print(f"engines: {winner.engines_text}")
    for engine in winner.engines:
        for line in _engine_lines(engine):
            print(f"  {line}")


def _engine_lines(engine: EngineRow) -> list[str]:
    measured = "measured here" if engine.measured else "not measured"
    lines = [f"{engine.engine} ({measured}): {join((*engine.environment, *engine.flags))}"]
    if engine.scales:
        lines.append(f"  needs {engine.scales}")
    note = f"; {engine.note}" if engine.note else ""
    lines.append(f"  {engine.conformance_text}{note}")
    return lines


def _widths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--widths {text!r} is not whole numbers joined by commas; write for example 2,3,4,8")
    return tuple(int(part) for part in parts)
