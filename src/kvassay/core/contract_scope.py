"""What a contract bounds, in sentences, and what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast, get_args

from kvassay.core.clauses.fidelity import Fidelity
from kvassay.core.clauses.fields import Section
from kvassay.core.clauses.free_running import FreeRunning
from kvassay.core.clauses.numeric import Numeric
from kvassay.core.clauses.sizes import ByteBounds
from kvassay.core.contract import Contract
from kvassay.core.tasks.kinds import KIND_NAMES


class ClauseScope(NamedTuple):
    name: str
    sentence: str
    """Its bounds as the contract gives them, and whether it is waived."""


class ContractScope(NamedTuple):
    clauses: tuple[ClauseScope, ...]
    unbounded: tuple[str, ...]


def scope(contract: Contract) -> ContractScope:
    return ContractScope(
        tuple(ClauseScope(name, _bounds(contract, name)) for name in contract.clause_names),
        tuple(_unbounded(contract)),
    )


def known_clauses() -> tuple[str, ...]:
    """Every clause that a contract of this version can have; tasks, whose names are free, by their kinds."""
    return (
        *(f"fidelity.{name}" for name in Fidelity.model_fields),
        *(f"free_running.{name}" for name in _optional_fields(FreeRunning)),
        *(f"numeric.{name}" for name in _optional_fields(Numeric)),
        *(f"task.{name}" for name in KIND_NAMES),
        *(f"bytes.{name}" for name in ByteBounds.model_fields if name != "count"),
    )


def _optional_fields(section: type[Section]) -> Iterator[str]:
    """Fields that are bounds: nothing by default, where settings have a value."""
    for name, field in section.model_fields.items():
        if field.default is None and any(
            isinstance(one, type) and issubclass(one, Section) for one in get_args(field.annotation)
        ):
            yield name


def _bounds(contract: Contract, clause: str) -> str:
    section, _, name = clause.partition(".")
    name, _, part = name.partition(".")
    value: Any = cast("dict[str, dict[str, Any]]", contract.to_json())[section][name]
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {"max": value}
    if part:
        fields = {"margin": fields[f"{part}_margin"]}
    waived = next((waiver for waiver in contract.waivers if waiver.clause == clause), None)
    said = ", ".join(f"{key} {_said(shown)}" for key, shown in fields.items() if shown not in (None, [], ()))
    return said + (f"; waived since {waived.granted.isoformat()}: {waived.reason}" if waived else "")


def _said(value: Any) -> str:
    return " ".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


def _unbounded(contract: Contract) -> Iterator[str]:
    kinds = {f"task.{bound.kind}" for bound in contract.task.values()}
    yield from (name for name in known_clauses() if name not in contract.clause_names and name not in kinds)
    if contract.has_fidelity:
        text = contract.text
        length = text.prompt_tokens + text.scored_tokens
        yield f"texts longer than {length} tokens, or of another kind than {text.corpus}"
    if not contract.task:
        yield "any task: a small KL alone does not show that a task is still solved"
    if contract.subject.model is None:
        yield "the model: any may be judged under it, and the evidence says which was"
    yield "speed and capacity: kvassay capacity and benchmarks are for that"
