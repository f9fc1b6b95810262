"""Cells: what is measured together and kept or lost together, named by content and not by how it is run.

A cell is one format on one workload, one model and one seed. A *reference* is the full-precision run that all cells of
a group share. A *group* (model, workload, seed) becomes one evidence pack when its cells are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from kvassay.core.contract import Contract, parse_contract
from kvassay.core.digest import sha256_json
from kvassay.core.records import Role

PLAN_SCHEMA = "kvassay.matrix-plan/1"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelIdentity(_Record):
    name: str
    """As the matrix names it: where to find it, and no part of any id."""
    weights_sha256: str
    tokenizer_sha256: str
    config_sha256: str
    revision: str | None

    def content(self, weights: str) -> dict[str, Any]:
        """What names the model that runs. `weights` says how its weights run (`subject.weights`)."""
        return {
            "weights_sha256": self.weights_sha256,
            "tokenizer_sha256": self.tokenizer_sha256,
            "config_sha256": self.config_sha256,
            "weights": weights,
        }


class Cell(_Record):
    id: str
    arm: str
    role: Role
    format_digest: str
    again: int
    """Number of the repetition, for the reference against itself; 0 for a format."""


class Group(_Record):
    """Model, workload and seed."""

    model: ModelIdentity
    workload: str
    workload_sha256: str
    seed: int
    engine: str
    device: str
    threads: int
    device_given: bool
    """Whether the user names the class of device, so that a worker does not compare its own."""
    contract_toml: str
    contract_sha256: str
    reference: str
    """Id of the shared reference."""
    cells: tuple[Cell, ...]

    @cached_property
    def id(self) -> str:
        return sha256_json({"contract": self.contract_sha256, "cells": [cell.id for cell in self.cells]})

    @property
    def contract(self) -> Contract:
        return parse_contract(self.contract_toml, self.workload)

    @property
    def label(self) -> str:
        """For people: who and what."""
        return f"{self.model.name}, {self.workload}, seed {self.seed}"

    @property
    def setting_sha256(self) -> str:
        """What seeds have in common: weights, engine, device, and the contract but for its seed. Groups that differ in
        anything else are no repetitions of each other."""
        content: dict[str, Any] = dict(self.contract.to_json())
        content["inference"] = {key: value for key, value in content["inference"].items() if key != "seed"}
        return sha256_json({"subject": self.subject(self.contract.subject.weights), "contract": content})

    def subject(self, weights: str) -> dict[str, Any]:
        """What every digest below this group begins with."""
        return {"model": self.model.content(weights), "engine": self.engine, "device": self.device}


class MatrixPlan(_Record):
    schema_version: str = PLAN_SCHEMA
    name: str
    groups: tuple[Group, ...]

    @property
    def digest(self) -> str:
        return sha256_json(self.model_dump(mode="json"))


class Item(NamedTuple):
    """What one worker takes at a time: a reference or a cell, or a part of one."""

    group: Group
    cell: Cell | None
    """None for the reference."""
    part: int = 0
    parts: int = 1

    @property
    def owner_id(self) -> str:
        """Of the cell or reference that it is (a part of)."""
        return self.group.reference if self.cell is None else self.cell.id

    @property
    def id(self) -> str:
        return self.owner_id if self.parts == 1 else f"{self.owner_id}.{self.part + 1}-of-{self.parts}"

    @property
    def kind(self) -> str:
        return "reference" if self.cell is None else "cell"

    @property
    def label(self) -> str:
        what = "reference" if self.cell is None else self.cell.arm
        part = "" if self.parts == 1 else f", part {self.part + 1} of {self.parts}"
        return f"{what} ({self.group.label}{part})"


def distinct_labels(groups: Sequence[Group]) -> dict[str, str]:
    """Labels by a group's id; where several groups have one label (an edited contract, other weights in a folder), it
    is followed by the beginning of the id, as the name of the group's pack is."""
    labels = {group.id: group.label for group in groups}
    count = Counter(labels.values())
    return {key: label if count[label] == 1 else f"{label} ({key[:8]})" for key, label in labels.items()}


def cell_id(subject: dict[str, Any], workload_sha256: str, seed: int, format_digest: str, again: int) -> str:
    return sha256_json(
        {
            "kind": "cell",
            **subject,
            "workload": workload_sha256,
            "seed": seed,
            "format": format_digest,
            "again": again,
        }
    )


def reference_id(subject: dict[str, Any], workload_sha256: str, seed: int) -> str:
    return sha256_json({"kind": "reference", **subject, "workload": workload_sha256, "seed": seed})


def items_of(plan: MatrixPlan, parts: int = 1) -> list[Item]:
    """All work in a good order: of each group its reference, then its cells; groups of one model together."""
    found: dict[str, Item] = {}
    for group in sorted(plan.groups, key=lambda group: group.model.weights_sha256):
        for cell in (None, *group.cells):
            for part in range(parts):
                item = Item(group, cell, part, parts)
                found.setdefault(item.id, item)
    return list(found.values())
