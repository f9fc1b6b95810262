"""Finished cells become evidence packs: one for each model, workload and seed, as `kvassay assess` would have left it.

Rows come in the order in which a single run measures them, so their files are those of that run byte for byte, and
`verify`, `judge`, `report` and `compare` read the pack as any other. Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter

from kvassay.assess.planning import NO_PILOT
from kvassay.core.contract import Contract
from kvassay.core.records import Arm, Verdicts
from kvassay.errors import StoreError
from kvassay.pack.layout import PackManifest
from kvassay.pack.reader import ArmLedgers, read_ledger_pair, read_whole_pack
from kvassay.pack.rejudge import judge_tables
from kvassay.pack.tables import TABLE_COLUMNS
from kvassay.pack.writer import PackWriter
from kvassay.report import chart_specs, headline, render_report
from kvassay.scale.cell import Cell, Group
from kvassay.scale.cell_files import read_record, read_rows, read_run
from kvassay.scale.store import Store, StoredFolder

_ARM = TypeAdapter(Arm)


class Merged(NamedTuple):
    group: Group
    out: Path
    manifest: PackManifest
    verdicts: Verdicts
    answer: str
    bits: dict[str, float]
    """Stored bits per value by arm."""


class _Done(NamedTuple):
    """A finished cell with what it left."""

    cell: Cell
    folder: str
    manifest: StoredFolder
    record: dict[str, Any]
    run: dict[str, Any]


def missing_cells(store: Store, group: Group) -> list[Cell]:
    return [cell for cell in group.cells if store.folder(f"cells/{cell.id}", cell.id) is None]


def merge_group(store: Store, group: Group, out: Path) -> Merged:
    """Write the pack of a group whose cells are all done; raises StoreError where one is missing or damaged."""
    contract = group.contract
    done = [_read(store, cell) for cell in group.cells]
    _check_alike(done)
    with PackWriter(out, contract, group.contract_toml) as pack:
        pack.write_plan(_plan(contract, done))
        for table in TABLE_COLUMNS:
            for rows in _interleaved(store, done, table):
                pack.append(table, rows)
        arms = [_arm(each) for each in done]
        ledgers = {each.cell.arm: _ledgers(each) for each in done}
        pack.write_arms(arms)
        pack.write_ledgers(ledgers)
        pack.write_subject(_subject(group, done))
        pack.write_environment(_environment(group, done))
        verdicts = judge_tables(contract, arms, ledgers, pack.tables())
        pack.write_verdicts(verdicts)
        content = pack.content()
        for name, spec in chart_specs(content).items():
            pack.write_chart(name, spec)
        pack.write_report(render_report(content))
        manifest = pack.commit()
    bits = {name: 16 * pair.computed.ratio_to_float16 for name, pair in ledgers.items()}
    return Merged(group, pack.out, manifest, verdicts, headline(content), bits)


def read_merged(group: Group, out: Path) -> Merged:
    """A pack that was merged before; raises PackError where it is damaged, StoreError where it is of other cells."""
    content = read_whole_pack(out)
    assert content.manifest is not None, "a whole pack has one"
    cells = content.environment.get("cells")
    found = [cell.get("id") for cell in cells] if isinstance(cells, list) else None
    if content.contract.sha256 != group.contract_sha256 or found != [cell.id for cell in group.cells]:
        raise StoreError(f"{str(out)!r} is a pack of other cells than those of {group.label}; give another folder")
    bits = {name: 16 * pair.computed.ratio_to_float16 for name, pair in content.ledgers.items()}
    return Merged(group, out, content.manifest, content.verdicts, headline(content), bits)


def _read(store: Store, cell: Cell) -> _Done:
    folder = f"cells/{cell.id}"
    manifest = store.folder(folder, cell.id)
    if manifest is None:
        raise StoreError(f"{store.url}/{folder} is not finished; kvassay run finishes it")
    return _Done(cell, folder, manifest, read_record(store, folder, manifest), read_run(store, folder, manifest))


def _check_alike(done: Sequence[_Done]) -> None:
    """Cells of one group measured the same units; anything else is a fault of the store or of a worker's machine."""
    first = done[0]
    for each in done[1:]:
        for what in ("subject", "pilot"):
            if each.record[what] != first.record[what]:
                raise StoreError(
                    f"{first.folder} and {each.folder} differ in their {what}, so they did not measure the same; "
                    "remove the wrong one from the store and run the matrix again"
                )


def _interleaved(store: Store, done: Sequence[_Done], table: str) -> Iterator[Any]:
    """Rows of a table, document by document and within each by arm, as a single run writes them."""
    # A single run sorts the arms of a captured document by name.
    order = sorted(done, key=lambda each: each.cell.arm) if table == "tensors" else done
    rows = [_named(read_rows(store, each.folder, each.manifest, table), each) for each in order]
    counts = [each.record["chunks"].get(table, []) for each in order]
    begins = [0] * len(order)
    if len({len(chunks) for chunks in counts}) > 1:
        raise StoreError(f"cells of one group have different numbers of {table}: {[len(chunks) for chunks in counts]}")
    for chunk in range(len(counts[0])):
        parts = []
        for index, each in enumerate(rows):
            count = counts[index][chunk]
            parts.append(each.slice(begins[index], count))
            begins[index] += count
        yield pa.concat_tables(parts)


def _named(rows: Any, done: _Done) -> Any:
    """Rows under the arm's name in this group; a cell that two matrices share may have been written under another."""
    if rows is None or done.record["arm"]["name"] == done.cell.arm:
        return rows
    names = pa.array([done.cell.arm] * rows.num_rows, pa.string())
    return rows.set_column(rows.schema.get_field_index("arm"), rows.schema.field("arm"), names)


def _arm(done: _Done) -> Arm:
    return _ARM.validate_python({**done.record["arm"], "name": done.cell.arm, "role": done.cell.role.value})


def _ledgers(done: _Done) -> ArmLedgers:
    return read_ledger_pair(done.cell.arm, done.record["ledgers"])


def _plan(contract: Contract, done: Sequence[_Done]) -> dict[str, Any]:
    entries = [
        {**entry, "arm": each.cell.arm, "role": each.cell.role.value} for each in done for entry in each.record["plan"]
    ]
    expected: Counter[str] = Counter()
    for each in done:
        expected.update(each.run["seconds_expected"])
    return {
        "contract_sha256": contract.sha256,
        "power_asked": contract.inference.power,
        "pilot": {**NO_PILOT, **done[0].record["pilot"]},
        "clauses": entries,
        "cost": {
            "reference_tokens": sum(reference for reference, _ in done[0].record["cost"].values()),
            "candidate_tokens": sum(own for each in done for _, own in each.record["cost"].values()),
            "seconds_expected": sum(expected.values()),
            "seconds_by_level": dict(expected),
        },
    }


def _subject(group: Group, done: Sequence[_Done]) -> dict[str, Any]:
    subject = dict(done[0].record["subject"])
    return {
        **subject,
        "model": {"name": group.model.name, **subject["model"]},
        "examples": [{**found, "arm": each.cell.arm} for each in done for found in each.record["examples"]],
    }


def _environment(group: Group, done: Sequence[_Done]) -> dict[str, Any]:
    """The first cell's machine; the work of all cells, and where and from which cells it came."""
    seconds: Counter[str] = Counter()
    for each in done:
        seconds.update(each.run["seconds"])
    return {
        **done[0].run["environment"],
        "seconds": dict(seconds),
        "peak_rss_nbytes": max(each.run["peak_rss_nbytes"] for each in done),
        "started_utc": min(each.run["started_utc"] for each in done),
        "finished_utc": max(each.run["finished_utc"] for each in done),
        "cells": [
            {"id": each.cell.id, "arm": each.cell.arm, "result_sha256": each.manifest.result_sha256} for each in done
        ],
        "hosts": sorted({each.run["host"] for each in done}),
        "device": group.device,
        "reference": group.reference,
    }
