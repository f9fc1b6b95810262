"""From a matrix to its cells: identify models, texts and machine, and name everything that will be measured."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib import metadata

import torch

import kvassay
from kvassay.assess.arms import planned_arms
from kvassay.assess.checks import check_before_loading
from kvassay.core.contract import Contract
from kvassay.core.records import Role
from kvassay.engines.transformers.loading import identify_model
from kvassay.scale.cell import Cell, Group, MatrixPlan, ModelIdentity, cell_id, reference_id
from kvassay.scale.matrix import LoadedMatrix, Workload, workload_sha256
from kvassay.workloads.corpus import load_corpus


def engine_name() -> str:
    """Whose arithmetic a row is: other versions may round otherwise, so they make other cells."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    return f"kvassay {kvassay.__version__}, {versions}"


def device_class(threads: int) -> str:
    """The class of this machine: what changes the last bits of a float32 result on a CPU."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, {threads} threads"


def plan_matrix(loaded: LoadedMatrix, say: Callable[[str], None]) -> MatrixPlan:
    """Name every cell; refuses, before anything runs, what a model, a format and a contract cannot do together."""
    matrix = loaded.matrix
    digests = _Corpora()
    given = matrix.device.label is not None
    device = f"{matrix.device.label}, {matrix.device.threads} threads" if given else device_class(matrix.device.threads)
    groups: list[Group] = []
    for name in matrix.models:
        for workload in loaded.workloads:
            check_before_loading(name, workload.contract, planned_arms(workload.contract))
        found = identify_model(name, announce=say)
        identity = ModelIdentity(
            name=name,
            weights_sha256=found.hashes.weights,
            tokenizer_sha256=found.hashes.tokenizer,
            config_sha256=found.hashes.config,
            revision=found.revision,
        )
        groups += [
            _group(identity, workload, device, matrix.device.threads, given, digests.of(workload.contract))
            for workload in loaded.workloads
        ]
    return MatrixPlan(name=matrix.name, groups=tuple(groups))


def _group(
    identity: ModelIdentity, workload: Workload, device: str, threads: int, given: bool, corpora: dict[str, str]
) -> Group:
    contract = workload.contract
    workload_digest, seed = workload_sha256(contract, corpora), contract.inference.seed
    fields = {
        "model": identity,
        "workload": workload.name,
        "workload_sha256": workload_digest,
        "seed": seed,
        "engine": engine_name(),
        "device": device,
        "threads": threads,
        "device_given": given,
        "contract_toml": workload.toml,
        "contract_sha256": contract.sha256,
    }
    subject = Group(**fields, reference="", cells=()).subject(contract.subject.weights)
    cells: list[Cell] = []
    repetitions = 0
    for arm in planned_arms(contract):
        repetitions += arm.role is Role.REFERENCE_AGAIN
        again = repetitions if arm.role is Role.REFERENCE_AGAIN else 0
        digest = arm.kv_format.digest
        cells.append(
            Cell(
                id=cell_id(subject, workload_digest, seed, digest, again),
                arm=arm.name,
                role=arm.role,
                format_digest=digest,
                again=again,
            )
        )
    return Group(**fields, reference=reference_id(subject, workload_digest, seed), cells=tuple(cells))


class _Corpora:
    """Digests of texts by name, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, contract: Contract) -> dict[str, str]:
        names = {contract.text.corpus} if contract.needs_text else set()
        if contract.has_free_running:
            names.add(contract.free_running.corpus or contract.text.corpus)
        for name in names - set(self._known):
            self._known[name] = load_corpus(name).sha256
        return {name: self._known[name] for name in sorted(names)}
