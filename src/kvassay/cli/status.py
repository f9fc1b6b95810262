"""`kvassay status`: how far the matrices of a store are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvassay.cli.output import print_json, print_table
from kvassay.cli.torch_extra import require_extra
from kvassay.core.records import ExitCode
from kvassay.errors import printable

if TYPE_CHECKING:
    from kvassay.scale.status import ItemStatus, Status


def status_command(store: str, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Say what is done, running, waiting or quarantined. Exit code 0 all cells are done, 3 some are not.

    Parameters
    ----------
    store
        Folder or URL that kvassay run wrote to.
    json
        Print one JSON document.
    """
    require_extra("kvassay status", "scale", "fsspec")
    from kvassay.scale.plans import read_groups
    from kvassay.scale.status import read_status
    from kvassay.scale.store import Store

    opened = Store(store)
    found = read_status(opened, read_groups(opened))
    if json:
        print_json({"store": store, **found.to_json()})
    else:
        print_status(store, found)
    return ExitCode.MET if found.complete else ExitCode.INCONCLUSIVE


def print_status(store: str, status: Status) -> None:
    from kvassay.scale.cell import distinct_labels
    from kvassay.scale.status import DONE, QUARANTINED, quarantine_reason

    by_group: dict[str, list[ItemStatus]] = {}
    for each in status.items:
        by_group.setdefault(each.item.group.id, []).append(each)
    labels = distinct_labels([own[0].item.group for own in by_group.values()])
    rows = []
    for group, own in by_group.items():
        counts = [sum(each.state == state for each in own) for state in status.counts]
        seconds = sum(each.seconds for each in own if each.seconds is not None)
        rows.append([printable(labels[group]), *counts, f"{seconds:.1f}"])
    print_table(["model, workload, seed", *status.counts, "seconds of work"], rows, right=(1, 2, 3, 4, 5, 6))
    for each in status.items:
        if each.state == QUARANTINED and each.failures is not None and each.failures.last is not None:
            last = each.failures.last.text.strip().splitlines()[-1]
            print(printable(f"{each.item.label}: quarantined, {quarantine_reason(each.failures)}: {last}"))
            print(
                f"  traceback in {printable(store)}/failures/{each.item.owner_id}*; kvassay run --retry tries it again"
            )
    estimate = status.estimate
    if estimate.from_items:
        spread = "" if estimate.half_width_seconds is None else f" ± {estimate.half_width_seconds:.0f}"
        print(
            f"left: about {estimate.seconds:.0f}{spread} s of work, from {estimate.from_items} finished of their kind"
            + (f"; nothing is known of {estimate.unknown_items} others" if estimate.unknown_items else "")
        )
    elif estimate.unknown_items:
        print(f"left: {estimate.unknown_items} of whose kind none is finished, so there is no estimate yet")
    done = status.counts[DONE]
    print(f"{done} of {len(status.items)} cells and references are done; results {status.results_sha256}")
