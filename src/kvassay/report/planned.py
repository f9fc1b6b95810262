"""What was planned before the run, and what the run then cost."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from kvassay.pack.reader import PackContent
from kvassay.report.answer import level
from kvassay.report.figures import NOT_RECORDED, Figure, Shown, duration, given, number, percent, significant, size
from kvassay.report.free_fields import field, members_at, number_at, objects_at, text_at


class PlannedClause(NamedTuple):
    arm: str
    clause: str
    slice: str
    expected: Shown
    limit: Shown
    unit: str
    n_planned: Shown
    n_needed: Shown
    n_unit: str
    power: Shown
    assumption: str


class Cost(NamedTuple):
    seconds_expected: Shown
    measuring_seconds: Shown
    seconds: Shown
    reference_tokens: Shown
    candidate_tokens: Shown
    positions: Shown
    items: Shown
    peak_memory: Shown


class Stage(NamedTuple):
    name: str
    seconds: Shown
    share: Shown


_LEVELS = ("documents", "tensors", "items", "answers", "prompts")
"""Where a plan does not say which it has."""
UNKNOWN = "unknown"
"""The n that a clause needs where the pilot does not tell: it saw no difference at all, or too few units."""


class Planned(NamedTuple):
    pilot_documents: Shown
    pilot_items: Shown
    pilot_prompts: Shown
    pilot_answers: Shown | None
    """None where the contract asks for no written answers."""
    pilot_ids: tuple[str, ...]
    pilot_overlap: str
    """Whether documents of the pilot are among those that were judged."""
    clauses: tuple[PlannedClause, ...]
    cost: Cost
    difference: str
    stages: tuple[Stage, ...]
    power_asked: Shown
    same_contract: bool | None
    """Whether the plan was made for this contract; None where it does not say."""


def planned(content: PackContent) -> Planned:
    plan, environment = content.plan, content.environment
    named = text_at(plan, "contract_sha256")
    expected_seconds = number_at(plan, "cost", "seconds_expected")
    ids = field(plan, "pilot", "document_ids")
    pilot_ids = tuple(str(one) for one in ids) if isinstance(ids, list) else ()
    return Planned(
        pilot_documents=number(number_at(plan, "pilot", "documents")),
        pilot_items=number(number_at(plan, "pilot", "items")),
        pilot_prompts=number(number_at(plan, "pilot", "prompts")),
        pilot_answers=number(number_at(plan, "pilot", "answers")) if content.contract.written_tasks else None,
        pilot_ids=pilot_ids,
        pilot_overlap=_overlap(pilot_ids, content),
        clauses=tuple(_clause(one) for one in objects_at(plan, "clauses")),
        cost=Cost(
            seconds_expected=duration(expected_seconds),
            measuring_seconds=duration(measuring_seconds(plan, environment)),
            seconds=duration(total_seconds(environment)),
            reference_tokens=number(number_at(plan, "cost", "reference_tokens")),
            candidate_tokens=number(number_at(plan, "cost", "candidate_tokens")),
            positions=number(content.tables.tokens.num_rows),
            items=number(content.tables.items.num_rows + content.tables.answers.num_rows),
            peak_memory=size(number_at(environment, "peak_rss_nbytes")),
        ),
        difference=_difference(expected_seconds, measuring_seconds(plan, environment)),
        stages=_stages(environment),
        power_asked=Figure(level(content.contract.inference.power), repr(content.contract.inference.power)),
        same_contract=None if named is None else named == content.contract.sha256,
    )


def total_seconds(environment: dict[str, Any]) -> float | None:
    """The sum of all recorded stages; None where none is."""
    found = [number_at(environment, "seconds", stage) for stage in members_at(environment, "seconds")]
    known = [float(value) for value in found if value is not None]
    return math.fsum(known) if known else None


def measuring_seconds(plan: dict[str, Any], environment: dict[str, Any]) -> float | None:
    """Time of the stages that the plan predicts, the levels. None where none is recorded."""
    levels = members_at(plan, "cost", "seconds_by_level") or _LEVELS
    found = [number_at(environment, "seconds", level) for level in levels]
    known = [float(value) for value in found if value is not None]
    return math.fsum(known) if known else None


def _stages(environment: dict[str, Any]) -> tuple[Stage, ...]:
    total = total_seconds(environment)
    stages: list[Stage] = []
    for name in members_at(environment, "seconds"):
        value = number_at(environment, "seconds", name)
        share = percent(value / total) if value is not None and total else NOT_RECORDED
        stages.append(Stage(name, duration(value), share))
    return tuple(stages)


def _clause(clause: dict[str, Any]) -> PlannedClause:
    return PlannedClause(
        arm=text_at(clause, "arm") or NOT_RECORDED,
        clause=text_at(clause, "clause") or NOT_RECORDED,
        slice=text_at(clause, "slice") or NOT_RECORDED,
        expected="–" if _is_null(clause, "expected") else number(number_at(clause, "expected")),
        limit=given(number_at(clause, "limit")),
        unit=text_at(clause, "unit") or NOT_RECORDED,
        n_planned=number(number_at(clause, "n_planned")),
        n_needed=_needed(clause),
        n_unit=text_at(clause, "n_unit") or NOT_RECORDED,
        power="–" if _is_null(clause, "power") else percent(number_at(clause, "power")),
        assumption=text_at(clause, "assumption") or NOT_RECORDED,
    )


def _needed(clause: dict[str, Any]) -> Shown:
    if not _is_null(clause, "n_needed"):
        return number(number_at(clause, "n_needed"))
    tells = number_at(clause, "power") is not None or field(clause, "expected") == field(clause, "limit")
    return "none suffices" if tells else UNKNOWN


def _is_null(clause: dict[str, Any], name: str) -> bool:
    """True where the plan says that there is no such number, which differs from saying nothing."""
    return name in clause and clause[name] is None


def _overlap(pilot_ids: tuple[str, ...], content: PackContent) -> str:
    if not pilot_ids:
        return f"Which documents the pilot used: {NOT_RECORDED}."
    judged = set(content.tables.tokens.column("document").unique().to_pylist())
    shared = [document for document in pilot_ids if document in judged]
    if shared:
        return f"{len(shared)} of {len(pilot_ids)} pilot documents were judged again: plan and verdict are not apart."
    return f"None of the {len(pilot_ids)} pilot documents is among those that were judged."


def _difference(expected: float | None, real: float | None) -> str:
    if not expected or real is None or expected < 0:
        return f"Expected against real time: {NOT_RECORDED}."
    return f"Measuring took {significant(100 * real / expected)}% of the expected time."
