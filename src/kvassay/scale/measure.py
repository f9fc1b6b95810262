"""Running one item: a reference, a cell, or a part of one. Only content comes back; where it goes is `work`'s."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm, planned_arms
from kvassay.assess.environment import peak_rss_nbytes
from kvassay.assess.levels.base import Columns, Subject, Tally
from kvassay.assess.pilot import calibrate, calibration_source, run_pilot
from kvassay.assess.progress import Silent
from kvassay.assess.real_ledgers import measure_ledgers
from kvassay.assess.subject_record import arm_record, subject_record
from kvassay.core.calibration_policy import parse_policy
from kvassay.engines.transformers.generating import Generator
from kvassay.scale.bench import Bench, Prepared, own_units
from kvassay.scale.cell import Item
from kvassay.scale.reference import GeneratedReference, Put, Read, encode_unit


class ReferenceResult(NamedTuple):
    files: list[str]
    """Of all units of this part."""
    run: dict[str, Any]
    """Of this run: tokens, seconds, machine."""


class CellResult(NamedTuple):
    chunks: dict[str, list[Columns]]
    """Rows by table, as they were measured: one document, item or batch each."""
    record: dict[str, Any]
    """What every run of this cell gives, beside its rows."""
    run: dict[str, Any]


def run_reference(bench: Bench, item: Item, exists: Callable[[str], bool], read: Read, put: Put) -> ReferenceResult:
    """Compute what is not there yet, one unit after another, so that a killed run loses one unit."""
    began, started = time.monotonic(), _now()
    ready = bench.prepare(item.group)
    files: list[str] = []
    tokens = held = 0
    for index, unit in enumerate(ready.units):
        if index % item.parts != item.part:
            continue
        files.append(file := unit.file(ready.subject, ready.contract))
        if exists(file):
            held += len(unit.token_ids)
            continue
        put(file, encode_unit(ready.scorer, unit, ready.contract.subject.reference_kv))
        tokens += len(unit.token_ids)
    generated = GeneratedReference(ready.subject, ready.contract, read, put)
    for level in ready.levels:
        if level.generates:
            subject = _subject(ready, (), {}, Tally(), generated)
            if item.part == 0:
                level.measure_all(subject, level.pilot_units, _nowhere, lambda: None, pilot=True)
            level.measure_all(subject, own_units(level, level.units, item.part, item.parts), _nowhere, lambda: None)
    return ReferenceResult(
        [*files, *generated.files],
        {**_machine(started, began), "reference_tokens": tokens + generated.tokens, "reused_tokens": held},
    )


def run_cell(bench: Bench, item: Item, read: Read, say: Callable[[str], None]) -> CellResult:
    """Measure one format over the units of this part; the pilot, the plan and the ledgers belong to the first part."""
    assert item.cell is not None, "a reference is no cell"
    began, started = time.monotonic(), _now()
    ready = bench.prepare(item.group)
    arm = next(arm for arm in planned_arms(ready.contract) if arm.name == item.cell.arm)
    seconds = {"load": time.monotonic() - began}
    ready.scorer.attach(read, ready.units, ready.subject, ready.contract)
    generated = GeneratedReference(ready.subject, ready.contract, read)
    try:
        return _measure(ready, arm, item, generated, seconds, started, say)
    finally:
        ready.scorer.detach()


def _measure(
    ready: Prepared,
    arm: PlannedArm,
    item: Item,
    generated: GeneratedReference,
    seconds: dict[str, float],
    started: str,
    say: Callable[[str], None],
) -> CellResult:
    contract, levels, tally = ready.contract, ready.levels, Tally()
    began = time.monotonic()
    subject = _subject(ready, (arm,), {}, tally, generated)
    record: dict[str, Any] = {}
    if item.part == 0:
        pilot = run_pilot(contract, subject, levels, Silent())
        calibrations, sources = pilot.calibrations, pilot.calibration_sources
        record["plan"] = [entry for level in levels for entry in level.plan((arm,), pilot.rows[level.name])]
        record["pilot"] = {key: value for level in levels for key, value in level.pilot_json().items()}
        record["cost"] = {level.name: list(level.cost((arm,))) for level in levels}
        expected = {level.name: pilot.seconds_per_unit[level.name] * len(level.units) for level in levels}
    else:
        calibrations = calibrate(ready.scorer, (arm,), levels, parse_policy(contract.inference.calibration))
        sources = {name: calibration_source(scales) for name, scales in calibrations.items()}
        expected = {}
    seconds["pilot"] = time.monotonic() - began
    subject = subject._replace(calibrations=calibrations)
    chunks: defaultdict[str, list[Columns]] = defaultdict(list)
    for level in levels:
        began = time.monotonic()
        units = own_units(level, level.units, item.part, item.parts)
        level.measure_all(subject, units, lambda table, columns: chunks[table].append(columns), lambda: None)
        seconds[level.name] = time.monotonic() - began
        say(f"{level.words}: {len(units)} in {seconds[level.name]:.2f} s")
    if item.part == 0:
        began = time.monotonic()
        ledgers = measure_ledgers(ready.loaded, levels, subject)
        record["ledgers"] = ledgers[arm.name].to_json()
        seconds["ledgers"] = time.monotonic() - began
    record["arm"] = arm_record(arm, sources.get(arm.name), tally).model_dump(mode="json")
    described = subject_record(item.group.model.name, contract, ready.loaded, levels, None)
    record["examples"] = described.pop("examples")
    del described["model"]["name"]  # where the model was found here is no result
    record["subject"] = described
    run = {
        **_machine(started, None),
        "seconds": seconds,
        "seconds_expected": expected,
        "environment": ready.environment,
        "peak_rss_nbytes": peak_rss_nbytes(),
    }
    return CellResult(dict(chunks), record, run)


def _subject(
    ready: Prepared,
    arms: tuple[PlannedArm, ...],
    calibrations: Any,
    tally: Tally,
    generated: Callable[[Generator, Any, Any], Any],
) -> Subject:
    return Subject(
        ready.loaded.model,
        ready.scorer,
        ready.loaded.tokenizer,
        arms,
        calibrations,
        ready.contract.subject.reference_kv,
        tally,
        generated,
    )


def _machine(started: str, began: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"host": platform.node(), "started_utc": started, "finished_utc": _now()}
    return found if began is None else {**found, "seconds": {"reference": time.monotonic() - began}}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _nowhere(_table: str, _columns: Columns) -> None:
    return
