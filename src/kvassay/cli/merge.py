"""`kvassay merge`: finished cells become evidence packs, with a frontier over the models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvassay.cli.assess import default_out, outcome_word
from kvassay.cli.output import print_json, print_table, say
from kvassay.cli.torch_extra import require_extra
from kvassay.core.records import ExitCode
from kvassay.errors import KEPT_PACKS, printable


def merge(
    store: str,
    /,
    *,
    out: Path,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a pack for each model, workload and seed. Exit code as of kvassay assess, over all packs; 3 if cells lack.

    Parameters
    ----------
    store
        Folder or URL that kvassay run wrote to.
    out
        Folder for the packs, each of which is verified, judged and reported as any other. A pack that is there is kept.
    json
        Print one JSON document.
    """
    require_extra("kvassay merge", "scale", "fsspec")
    from kvassay.scale.cell import distinct_labels
    from kvassay.scale.frontier import ambiguous_workloads, frontier
    from kvassay.scale.merge import Merged, merge_group, missing_cells, read_merged
    from kvassay.scale.plans import read_groups
    from kvassay.scale.store import Store

    opened = Store(store)
    merged: list[Merged] = []
    unfinished: dict[str, int] = {}
    groups = read_groups(opened)
    labels = distinct_labels(groups)
    for group in groups:
        missing = missing_cells(opened, group)
        if missing:
            unfinished[labels[group.id]] = len(missing)
            continue
        base = default_out(group.model.name, group.workload).name.removeprefix("kvassay-")
        place = out / f"{base}-seed{group.seed}-{group.id[:8]}"
        try:
            merged.append(read_merged(group, place) if place.exists() else merge_group(opened, group, place))
        except BaseException as error:
            if merged:
                error.add_note(f"{KEPT_PACKS}: {out}")
            raise
        if not json:
            say(f"{labels[group.id]}: {outcome_word(merged[-1].verdicts.outcome)}, {place}")
    points = frontier(merged)
    code = _exit_code([pack.verdicts.exit_code for pack in merged], bool(unfinished))
    if json:
        packs = [
            {
                "out": str(pack.out),
                "root": pack.manifest.root,
                "model": pack.group.model.name,
                "workload": pack.group.workload,
                "seed": pack.group.seed,
                "answer": pack.answer,
                "verdicts": pack.verdicts.model_dump(mode="json"),
            }
            for pack in merged
        ]
        print_json({"packs": packs, "frontier": [point.to_json() for point in points], "unfinished": unfinished})
        return code
    several = ambiguous_workloads(points)
    rows = [
        [
            printable(point.model),
            printable(point.workload)
            + (f" ({point.setting_sha256[:8]})" if (point.model, point.workload) in several else ""),
            point.format,
            f"{point.bits:.3f}",
            f"{point.met} of {point.seeds}",
            "smallest that met" if point.on_frontier else "",
        ]
        for point in points
    ]
    print_table(["model", "workload", "format", "bits", "seeds met", ""], rows, right=(3, 4))
    if several:
        print("the number behind a workload tells its settings apart: contracts, weights or packages that differ")
    for label, count in unfinished.items():
        print(printable(f"{label}: not merged, {count} cells are not done; kvassay run finishes them"))
    print(f"{len(merged)} packs in {printable(str(out))}; verify each with: kvassay verify PACK")
    return code


def _exit_code(codes: list[int], unfinished: bool) -> int:
    """What is breached is told first; a cell that lacks leaves the rest undecided."""
    if ExitCode.BREACHED in codes:
        return ExitCode.BREACHED
    if unfinished or not codes or ExitCode.INCONCLUSIVE in codes:
        return ExitCode.INCONCLUSIVE
    return ExitCode.MET
