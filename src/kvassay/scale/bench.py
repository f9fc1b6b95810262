"""What a worker keeps between cells: a loaded model, its scorer, and the drawn units of a group."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from kvassay.assess.checks import check_subject
from kvassay.assess.environment import environment_record
from kvassay.assess.levels.base import Level
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.core.contract import Contract
from kvassay.engines.transformers.loading import LoadedModel, load_model
from kvassay.errors import ModelError
from kvassay.scale.cell import Group
from kvassay.scale.planning import device_class, engine_name
from kvassay.scale.reference import StoredScorer, Unit, reference_units


class Prepared(NamedTuple):
    """A group on this machine."""

    contract: Contract
    loaded: LoadedModel
    scorer: StoredScorer
    """Detached: it runs the reference until `attach` is called."""
    levels: tuple[Level, ...]
    units: list[Unit]
    subject: dict[str, Any]
    environment: dict[str, Any]


class Bench:
    """Prepares groups one after another; the last model and the last group stay in memory."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say
        self._model_key: tuple[str, str, str] | None = None
        self._group_key: str | None = None
        self._loaded: LoadedModel | None = None
        self._scorers: dict[str, StoredScorer] = {}
        self._found: dict[str, Any] | None = None

    def prepare(self, group: Group) -> Prepared:
        """Raises ModelError where this machine has another model, engine or processor than the plan names."""
        torch.set_num_threads(group.threads)
        self._check_machine(group)
        contract = group.contract
        loaded = self._model(group, contract)
        if self._group_key != group.contract_sha256:
            self._levels = drawn_levels(contract, loaded.tokenizer)
            for level in self._levels:
                level.check_lengths(loaded.geometry.max_context, group.model.name)
            self._units = reference_units(self._levels, contract)
            self._contract, self._group_key = contract, group.contract_sha256
        reads = contract.inference.prefill_reads
        if reads not in self._scorers:
            self._scorers[reads] = StoredScorer(loaded.model, loaded.geometry, reads)
        scorer = self._scorers[reads]
        scorer.detach()
        # A level remembers what it measured (worst cases, ids that end an output); a copy of a fresh one does not.
        levels = tuple(copy.copy(level) for level in self._levels)
        subject = group.subject(contract.subject.weights)
        return Prepared(contract, loaded, scorer, levels, self._units, subject, self._environment())

    def _environment(self) -> dict[str, Any]:
        """Of this process: packages and source are those that it began with, and reading them takes 0.15 s."""
        if self._found is None:
            self._found = environment_record()
        return {**self._found, "threads": torch.get_num_threads()}

    def _model(self, group: Group, contract: Contract) -> LoadedModel:
        key = (group.model.name, group.model.weights_sha256, contract.subject.weights)
        if self._loaded is None or key != self._model_key:
            self._loaded, self._model_key, self._group_key = None, None, None
            self._scorers = {}
            loaded = load_model(group.model.name, announce=self._say, weights=contract.subject.weights)
            _check_model(group, loaded)
            self._loaded, self._model_key = loaded, key
        check_subject(contract, self._loaded)
        return self._loaded

    def _check_machine(self, group: Group) -> None:
        found = engine_name()
        if found != group.engine:
            raise ModelError(f"the matrix was planned for {group.engine}, this worker has {found}; install the same")
        here = device_class(group.threads)
        if not group.device_given and here != group.device:
            raise ModelError(
                f"the matrix was planned for {group.device}, this worker is {here}, whose results may differ in their "
                "last bits; run it on such machines, or write device.label in the matrix to take them for equal"
            )


def own_units(level: Level, units: Sequence[Any], part: int, parts: int) -> Sequence[Any]:
    """Part `part` of a level's units, in order; units that run together stay together."""
    batches = level.batches(units)
    begin, end = (len(batches) * edge // parts for edge in (part, part + 1))
    return [unit for batch in batches[begin:end] for unit in batch]


def _check_model(group: Group, loaded: LoadedModel) -> None:
    for what, expected, found in (
        ("weights", group.model.weights_sha256, loaded.hashes.weights),
        ("tokenizer", group.model.tokenizer_sha256, loaded.hashes.tokenizer),
        ("config", group.model.config_sha256, loaded.hashes.config),
    ):
        if expected != found:
            raise ModelError(
                f"{group.model.name}: its {what} here has the digest {found[:12]}, the matrix was planned for "
                f"{expected[:12]}; put the same model on every machine, or plan anew"
            )
