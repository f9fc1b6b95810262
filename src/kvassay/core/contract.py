"""The quality contract: what degradation is allowed, fixed and hashed before the run.

A contract is a TOML file, whose sections are in `core.clauses`. Unknown keys are refused, since a misspelt bound that
is silently ignored is a false pass. Its hash is the SHA-256 of the canonical JSON of the *effective* contract, defaults
included, so any edit of a bound, a margin or a seed changes it, and reformatting the file does not.
"""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from kvassay.core.clauses.decision import Candidates, Controls, Inference
from kvassay.core.clauses.fidelity import Fidelity, TextWorkload
from kvassay.core.clauses.fields import Section, contract_format
from kvassay.core.clauses.free_running import FreeRunning
from kvassay.core.clauses.numeric import Numeric
from kvassay.core.clauses.sizes import ByteBounds
from kvassay.core.clauses.slice_plan import slice_fault
from kvassay.core.clauses.subject import Subject
from kvassay.core.clauses.tasks import PARSE, TaskBound, TaskName, needles_alone, with_kinds
from kvassay.core.corpus_names import corpus_cells
from kvassay.core.digest import sha256_json
from kvassay.core.regular_file import read_once
from kvassay.errors import ContractError

SCHEMA = "kvassay.contract/1"

MAX_CONTRACT_NBYTES = 1 << 17
"""Real ones take some kilobytes; a megabyte of TOML tables takes seconds to parse."""

_MAX_MESSAGE = 600
_MAX_DOTS = 5000
"""A key of n dotted parts takes the parser n² steps."""

SEQUENTIAL_LEVELS = ("task", "bytes")
"""Clauses that a sequential contract may have: paired binary ones, and what is counted and not sampled."""


class Waiver(Section):
    """A clause that is knowingly not required, with its reason and the date it was granted."""

    clause: str
    reason: str = Field(min_length=10)
    granted: date


class Contract(Section):
    schema_: Literal["kvassay.contract/1"] = Field(alias="schema")
    name: str = Field(min_length=1, max_length=100)
    subject: Subject = Subject()
    text: TextWorkload = TextWorkload()
    candidates: Candidates
    inference: Inference = Inference()
    controls: Controls = Controls()
    fidelity: Fidelity = Fidelity()
    free_running: FreeRunning = FreeRunning()
    numeric: Numeric = Numeric()
    task: dict[TaskName, TaskBound] = Field(default_factory=dict[TaskName, TaskBound])
    bytes: ByteBounds = ByteBounds()
    waivers: tuple[Waiver, ...] = ()

    @field_validator("task", mode="before")
    @classmethod
    def _kinds_of_tasks(cls, task: Any) -> Any:
        return with_kinds(task)

    @model_validator(mode="after")
    def _has_clauses(self) -> Contract:
        if not self.clause_names:
            raise ValueError(
                "the contract bounds nothing; give at least one of [fidelity.*], [free_running.*], [numeric.*], "
                "[task.*] or [bytes]"
            )
        if needles_alone(self.task) and not self.has_fidelity:
            raise ValueError(
                f"needles ({', '.join(sorted(self.task))}) see gross damage only and cannot be the only evidence; "
                "add [fidelity.*] or a task of another kind, e.g. [task.arithmetic]"
            )
        for waiver in self.waivers:
            if waiver.clause not in self.clause_names:
                raise ValueError(f"waiver of {waiver.clause!r}, which is no clause; clauses: {list(self.clause_names)}")
        canary = self.controls.canary
        if canary is not None and contract_format(canary).digest in {
            contract_format(text).digest for text in self.candidates.order
        }:
            raise ValueError(f"controls.canary {canary!r} is also a candidate; a known-bad format cannot be one")
        for clause, bound in self.fidelity.bounds.items():
            if self.text.documents < bound.min_docs:
                raise ValueError(
                    f"text.documents is {self.text.documents}, fidelity.{clause} needs at least {bound.min_docs}"
                )
        cells = corpus_cells(self.text.corpus)
        if fault := slice_fault(self.text, self.fidelity, self.inference.pilot_documents, cells):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _design_serves_the_clauses(self) -> Contract:
        if self.inference.design != "sequential":
            return self
        if written := sorted(self.written_tasks):
            raise ValueError(
                f'inference.design is "sequential" and task.{written[0]} has answer = "written": answers are '
                'written in batches, which a look cannot cut; use design "fixed", or answer = "teacher-forced"'
            )
        if not self.task:
            raise ValueError('inference.design is "sequential" and there is no [task.*] to look at; use "fixed"')
        if fixed := [name for name in self.clause_names if name.partition(".")[0] not in SEQUENTIAL_LEVELS]:
            raise ValueError(
                f'inference.design is "sequential", which {", ".join(fixed)} cannot follow: only paired tasks have a '
                'bound that holds at every look; put these clauses in a contract of their own with design "fixed"'
            )
        return self

    @property
    def clause_names(self) -> tuple[str, ...]:
        """Dotted names of all clauses, e.g. `fidelity.kl_mean`, `task.recall`, `bytes.persistent_per_token_max`."""
        return (
            *(f"fidelity.{name}" for name in self.fidelity.bounds),
            *(f"free_running.{name}" for name in self.free_running.bounds),
            *(f"numeric.{name}" for name in self.numeric.bounds),
            *(
                f"task.{name}{part}"
                for name, bound in sorted(self.task.items())
                for part in ("", *([] if bound.parse_margin is None else [f".{PARSE}"]))
            ),
            *(f"bytes.{name}" for name in self.bytes.bounds),
        )

    @property
    def teacher_forced_tasks(self) -> dict[str, TaskBound]:
        """By name, in sorted order."""
        return {name: bound for name, bound in sorted(self.task.items()) if not bound.is_written}

    @property
    def written_tasks(self) -> dict[str, TaskBound]:
        """Those whose answers the model writes by itself; by name, in sorted order."""
        return {name: bound for name, bound in sorted(self.task.items()) if bound.is_written}

    @property
    def has_fidelity(self) -> bool:
        """True where some clause needs scored text."""
        return bool(self.fidelity.bounds)

    @property
    def has_free_running(self) -> bool:
        """True where some clause needs generated text."""
        return bool(self.free_running.bounds)

    @property
    def needs_text(self) -> bool:
        """True where some clause needs documents of `text.corpus`, scored or captured."""
        return self.has_fidelity or bool(self.numeric.bounds)

    @property
    def needs_run(self) -> bool:
        """True where some clause needs the model: bytes alone are computed."""
        return self.needs_text or self.has_free_running or bool(self.task)

    @property
    def captured_queries(self) -> int:
        """Decode positions of a captured document that the numeric level measures: the last ones."""
        return min(self.numeric.queries, self.text.scored_tokens)

    @property
    def sha256(self) -> str:
        return sha256_json(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The effective contract, defaults included, as JSON values."""
        return self.model_dump(mode="json", by_alias=True)


def parse_contract(text: str, origin: str = "contract") -> Contract:
    """Read a contract from TOML text; raises ContractError naming the field path."""
    if text.count(".") > _MAX_DOTS:
        raise ContractError(f"{origin}: {text.count('.'):,} dots; a contract has at most {_MAX_DOTS:,}")
    try:
        fields = tomllib.loads(text)
    except RecursionError as error:
        raise ContractError(f"{origin}: not valid TOML: nested too deeply") from error
    except ValueError as error:
        raise ContractError(f"{origin}: not valid TOML: {error}") from error
    try:
        return Contract.model_validate(fields)
    except ValidationError as error:
        raise ContractError(f"{origin}: {_first_error(error)}") from error


def load_contract(path: Path) -> Contract:
    """Read a contract file; raises ContractError naming the file and the fault."""
    return parse_contract(read_contract_text(path), origin=str(path))


def read_contract_text(path: Path) -> str:
    """The text of a contract file, byte for byte; a pipe will do, since it is read once."""
    try:
        data = read_once(path, MAX_CONTRACT_NBYTES + 1)
        text = data.decode()
    except FileNotFoundError as error:
        raise ContractError(f"contract {str(path)!r} does not exist") from error
    except OSError as error:
        raise ContractError(f"contract {str(path)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ContractError(f"contract {str(path)!r} cannot be read: not UTF-8 at byte {error.start}") from error
    if len(data) > MAX_CONTRACT_NBYTES:
        raise ContractError(f"contract {str(path)!r} has more than {MAX_CONTRACT_NBYTES} bytes; is it a contract?")
    return text


def _shown(value: object) -> str:
    """A value in a message; TOML's hexadecimal integers may have more digits than Python writes in decimal."""
    try:
        return repr(value)
    except ValueError:
        return f"a value of type {type(value).__name__} with too many digits"


def _first_error(error: ValidationError) -> str:
    """One line: field path, what was found, what is expected, and how many further faults there are."""
    errors = error.errors(include_url=False)
    first = errors[0]
    path = ".".join(str(part) for part in first["loc"]) or "contract"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown key; remove it or correct its spelling"
    elif first["type"] not in ("missing", "value_error"):
        found = _shown(first["input"])
        message = f"{message}, found {found if len(found) <= 80 else found[:77] + '...'}"
    further = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if len(message) > _MAX_MESSAGE:
        message = message[: _MAX_MESSAGE - 1] + "…"
    return f"{path[:_MAX_MESSAGE]}: {message}{further}"
