"""How far a store is: what is done, held, waiting or quarantined, and what the rest will take. Needs no torch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.core.digest import sha256_json
from kvassay.scale.cell import Group, Item
from kvassay.scale.cell_files import whole_folder
from kvassay.scale.failures import MOST_ERRORS, MOST_LOSSES, Failures, failed_items
from kvassay.scale.store import Store, StoredFolder

DONE, RUNNING, QUARANTINED, BLOCKED, OPEN = "done", "running", "quarantined", "blocked", "open"


class ItemStatus(NamedTuple):
    item: Item
    state: str
    """`done`, `running` (claimed), `quarantined`, `blocked` (its reference is quarantined) or `open`."""
    seconds: float | None
    """Of work, where it is done."""
    failures: Failures | None


class Estimate(NamedTuple):
    """Work that is left, from finished items of the same model and workload; wall time is that over the workers."""

    seconds: float
    half_width_seconds: float | None
    """Of a 95% interval for the sum, from the spread of finished items; None from fewer than two of a kind."""
    from_items: int
    unknown_items: int
    """Of which none of the kind is finished yet, so that nothing is known of them."""


class Status(NamedTuple):
    items: tuple[ItemStatus, ...]
    estimate: Estimate
    results_sha256: str
    """Of all finished cells: equal however, and in however many tries, they were run."""
    reference_tokens: int
    """That ran through a model for references, over all finished ones."""

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(each.state for each in self.items)
        return {state: found[state] for state in (DONE, RUNNING, OPEN, QUARANTINED, BLOCKED)}

    @property
    def complete(self) -> bool:
        return all(each.state == DONE for each in self.items)

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": self.counts,
            "complete": self.complete,
            "results_sha256": self.results_sha256,
            "reference_tokens": self.reference_tokens,
            "estimate": self.estimate._asdict(),
            "quarantined": [
                {
                    "id": each.item.owner_id,
                    "label": each.item.label,
                    "failure": None if each.failures is None or each.failures.last is None else each.failures.last.text,
                }
                for each in self.items
                if each.state == QUARANTINED
            ],
        }


def read_status(store: Store, groups: Sequence[Group]) -> Status:
    items = list({item.owner_id: item for group in groups for item in _items(group)}.values())
    claimed = {name.removesuffix(".json").partition(".")[0] for name in store.names("claims")}
    failed: defaultdict[str, list[Failures]] = defaultdict(list)
    for name, failures in failed_items(store).items():
        failed[name.partition(".")[0]].append(failures)  # of a part, under its whole
    done: dict[str, StoredFolder] = {}
    for item in items:
        folder = store.folder(whole_folder(item), item.owner_id)
        if folder is not None:
            done[item.owner_id] = folder
    bad = {name for name, of_parts in failed.items() if any(each.quarantined for each in of_parts)} - set(done)
    found = tuple(_status(item, done, claimed, bad, failed) for item in items)
    cells = {item.owner_id: done[item.owner_id].result_sha256 for item in items if item.cell and item.owner_id in done}
    tokens = sum(
        done[item.owner_id].facts["reference_tokens"] for item in items if not item.cell and item.owner_id in done
    )
    return Status(found, _estimate(found), sha256_json(cells), tokens)


def quarantine_reason(failures: Failures) -> str:
    if failures.errors >= MOST_ERRORS:
        return f"{failures.errors} tries raised an error"
    return f"{failures.losses} tries (of at most {MOST_LOSSES}) ended with their worker"


def _items(group: Group) -> list[Item]:
    return [Item(group, None), *(Item(group, cell) for cell in group.cells)]


def _status(
    item: Item, done: dict[str, StoredFolder], claimed: set[str], bad: set[str], failed: dict[str, list[Failures]]
) -> ItemStatus:
    failures = max(failed.get(item.owner_id, ()), key=lambda each: each.errors + each.losses, default=None)
    if item.owner_id in done:
        return ItemStatus(item, DONE, float(done[item.owner_id].facts["seconds"]), failures)
    state = OPEN
    if item.owner_id in bad:
        state = QUARANTINED
    elif item.cell is not None and item.group.reference in bad:
        state = BLOCKED
    elif item.owner_id in claimed:
        state = RUNNING
    return ItemStatus(item, state, None, failures)


def _estimate(items: Sequence[ItemStatus]) -> Estimate:
    finished: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for each in items:
        if each.seconds is not None:
            finished[_kind(each.item)].append(each.seconds)
    seconds = variance = 0.0
    unknown = 0
    known_spread = True
    used: set[tuple[str, ...]] = set()
    for each in items:
        if each.state not in (OPEN, RUNNING):
            continue
        alike = finished.get(_kind(each.item))
        if alike is None:
            unknown += 1
            continue
        used.add(_kind(each.item))
        mean = math.fsum(alike) / len(alike)
        seconds += mean
        if len(alike) > 1:
            variance += math.fsum((value - mean) ** 2 for value in alike) / (len(alike) - 1)
        else:
            known_spread = False
    half = 1.96 * math.sqrt(variance) if known_spread else None
    return Estimate(seconds, half, sum(len(finished[kind]) for kind in used), unknown)


def _kind(item: Item) -> tuple[str, ...]:
    """Items of one kind take about as long: formats differ little beside models and workloads."""
    return (item.kind, item.group.model.weights_sha256, item.group.workload_sha256)
