"""`kvassay compare`: two evidence packs side by side, paired where they hold the same documents and items."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table
from kvassay.errors import printable

if TYPE_CHECKING:
    from kvassay.pack.compare import ClauseComparison, Comparison
    from kvassay.pack.rejudge import Difference


def compare(
    first: Path,
    second: Path,
    /,
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """What two packs share, and how each clause of each format moved from the first to the second. Decides nothing.

    Parameters
    ----------
    first
        An evidence pack.
    second
        Another one.
    json
        Print one JSON document.
    """
    from kvassay.pack.compare import compare_packs
    from kvassay.pack.reader import read_whole_pack

    packs = read_whole_pack(first), read_whole_pack(second)
    found = compare_packs(*packs)
    if json:
        roots = {"first": str(first), "second": str(second), "roots": [pack.manifest.root for pack in packs]}  # pyright: ignore[reportOptionalMemberAccess]
        print_json({**roots, **found.to_json()})
        return 0
    _print(found, printable(str(first)), printable(str(second)))
    return 0


def _print(found: Comparison, first: str, second: str) -> None:
    print(f"first  {first}\nsecond {second}")
    _print_differences("contract", found.contract_differences)
    _print_differences("model", found.model_differences)
    rows: list[list[str]] = []
    for one in found.formats:
        for index, clause in enumerate(clause for clause in one.clauses if not _descriptive(clause)):
            verdicts = f"{_words(one.first)} -> {_words(one.second)}" if one.first != one.second else _words(one.first)
            lead = [printable(one.arm), verdicts] if index == 0 else ["", ""]
            rows.append([*lead, *_cells(clause)])
    if rows:
        header = ["format", "verdict", "clause", "first", "second", "difference", "90% interval", "n", "outcome"]
        print_table(header, rows, right=(3, 4, 5, 6, 7))
    for one in found.formats:
        for clause in one.clauses:
            if clause.unpaired and not _descriptive(clause):
                print(f"not paired: {printable(one.arm)}, {clause.clause}: {clause.unpaired}")
    for which, names in (("first", found.first_only), ("second", found.second_only)):
        if names:
            print(f"only in the {which}: {printable(', '.join(names))}")
    changed = [one.arm for one in found.formats if one.first != one.second]
    print(f"verdicts changed: {printable(', '.join(changed)) if changed else 'none'}")


def _print_differences(what: str, differences: tuple[Difference, ...]) -> None:
    if not differences:
        print(f"same {what}")
    for each in differences:
        print(printable(f"other {what}: {each.path}: {each.stored!r} -> {each.again!r}"))


def _cells(clause: ClauseComparison) -> list[str]:
    name = clause.clause if clause.slice == "all" else f"{clause.clause} [{clause.slice}]"
    estimates = [_figure(one.estimate if one is not None else None) for one in (clause.first, clause.second)]
    outcomes = ["-" if one is None else _words(one.outcome.value) for one in (clause.first, clause.second)]
    moved = " -> ".join(outcomes) if clause.changed else outcomes[0]
    if clause.paired is None:
        return [name, *estimates, "-", "-", "-", moved]
    paired = clause.paired
    interval = f"{_figure(paired.lower)} to {_figure(paired.upper)}"
    return [name, *estimates, f"{paired.estimate:+.3g}", interval, str(paired.n), moved]


def _descriptive(clause: ClauseComparison) -> bool:
    return all(one is None or one.details.get("descriptive") is True for one in (clause.first, clause.second))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _words(outcome: str) -> str:
    return outcome.replace("_", " ").upper()
