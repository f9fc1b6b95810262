"""What a matrix will take, before it runs: cells, tokens, operations, bytes and hours.

Tokens are counted on the drawn workloads, so they are exact. Operations are those of the matrix products alone: two a
parameter and token, attention's over the history, and the output head at scored positions. Hours are those over a
rate: what cells of a store reached, what is given, or what a short product of the model's own shape reaches here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from kvassay.assess.arms import planned_arms
from kvassay.assess.levels.base import Level
from kvassay.assess.levels.drawn import drawn_levels
from kvassay.core.contract import Contract
from kvassay.core.geometry import CacheGeometry
from kvassay.core.model_source import resolve_model
from kvassay.engines.transformers.loading import identify_model, model_folder
from kvassay.engines.transformers.loading_checks import checked_config
from kvassay.measures.teacher_forced import CHUNK_TOKENS
from kvassay.scale.cell import Group, MatrixPlan
from kvassay.scale.reference import reference_units
from kvassay.scale.status import read_status
from kvassay.scale.store import Store

ROW_NBYTES = 60
"""Of a token row in a cell's Parquet file; measured 40 to 70, most of it seven float64 figures."""
FLOAT_NBYTES = 4
LIBRARIES_NBYTES = 600 << 20
"""Resident memory of a process with torch and transformers loaded."""


class Shape(NamedTuple):
    """What operations and bytes follow from."""

    parameters: int
    body_parameters: int
    """Without the embedding table and the output head."""
    head_parameters: int
    hidden: int
    geometry: CacheGeometry

    @property
    def kv_nbytes_per_token(self) -> int:
        """Float32 keys and values of all layers."""
        return FLOAT_NBYTES * sum(layer.kv_heads * (layer.head_dim + layer.value_dim) for layer in self.geometry.layers)

    @property
    def attention_width(self) -> int:
        """Query heads times head size, summed over layers: a quarter of the operations a query and token it reads."""
        return self.geometry.query_heads * sum(layer.head_dim for layer in self.geometry.layers)

    def worker_nbytes(self, longest: int) -> int:
        """Memory of one worker: float32 weights, the keys and values of one document four times (reference, stored and
        exact copy, cache of the ledger), logits of a chunk of positions, and the libraries."""
        logits = 4 * CHUNK_TOKENS * (self.head_parameters // self.hidden) * FLOAT_NBYTES
        weights = FLOAT_NBYTES * self.parameters
        return weights + 4 * longest * self.kv_nbytes_per_token + logits + LIBRARIES_NBYTES


class GroupCost(NamedTuple):
    label: str
    cells: int
    reference_tokens: int
    """Once for all cells."""
    unshared_reference_tokens: int
    """If every cell ran its own reference."""
    candidate_tokens: int
    flops: float
    reference_flops: float
    """Of `flops`, what the shared reference takes; the cells share the rest alike."""
    stored_nbytes: int
    """Of the reference; rows are thousands of times less."""
    rows_nbytes: int
    memory_nbytes: int
    """That one worker takes: float32 weights, one document's caches and logits."""

    @property
    def cell_flops(self) -> float:
        return (self.flops - self.reference_flops) / self.cells


class MatrixCost(NamedTuple):
    groups: tuple[GroupCost, ...]
    flops_per_second: float
    rate_source: str
    devices: int

    @property
    def hours(self) -> float:
        """Wall time if work spreads evenly; the longest item bounds it from below."""
        return sum(group.flops for group in self.groups) / self.flops_per_second / self.devices / 3600

    def to_json(self) -> dict[str, Any]:
        total = {
            name: sum(getattr(group, name) for group in self.groups)
            for name in GroupCost._fields
            if name not in ("label", "memory_nbytes")
        }
        return {
            "groups": [group._asdict() for group in self.groups],
            "total": total,
            "devices": self.devices,
            "flops_per_second": self.flops_per_second,
            "rate_source": self.rate_source,
            "hours": self.hours,
        }


def model_shape(name: str, say: Callable[[str], None]) -> Shape:
    """From the config alone: weights are not read."""
    config, geometry = checked_config(model_folder(resolve_model(name), say), name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    shared = head is table
    body = parameters - table.numel() - (0 if shared else head.numel())
    return Shape(parameters, body, head.numel(), table.shape[1], geometry)


def group_cost(contract: Contract, shape: Shape, levels: Sequence[Level], label: str) -> GroupCost:
    """Of one group, whose levels were drawn with the model's tokenizer."""
    arms = planned_arms(contract)
    pilots = {level.name: len(level.pilot_units) / max(1, len(level.units)) for level in levels}
    costs = {level.name: level.cost(arms) for level in levels}
    candidate = round(sum(cost.candidate_tokens * (1 + pilots[name]) for name, cost in costs.items()))
    units = reference_units(levels, contract)
    reference = sum(len(unit.token_ids) for unit in units)
    generated = sum(
        round(costs[level.name].reference_tokens * (1 + pilots[level.name])) for level in levels if level.generates
    )
    scored = sum(len(unit.token_ids) - unit.first_hidden for unit in units)
    longest = max((len(unit.token_ids) for unit in units), default=0)
    mean_history = reference / max(1, len(units)) / 2
    # A candidate's query looks at the stored and at the exact copy of its history.
    attention = 4 * shape.attention_width * mean_history
    body = 2 * shape.body_parameters
    of_reference = (reference + generated) * (body + attention)
    head = 2 * shape.head_parameters * 2 * scored * len(arms)
    stored = sum(
        (len(unit.token_ids) - unit.first_hidden) * shape.hidden * FLOAT_NBYTES + unit.kept * shape.kv_nbytes_per_token
        for unit in units
    )
    return GroupCost(
        label=label,
        cells=len(arms),
        reference_tokens=reference + generated,
        unshared_reference_tokens=(reference + generated) * len(arms),
        candidate_tokens=candidate,
        flops=float(of_reference + candidate * (body + 2 * attention) + head),
        reference_flops=float(of_reference),
        stored_nbytes=stored,
        rows_nbytes=ROW_NBYTES * scored * len(arms),
        memory_nbytes=shape.worker_nbytes(longest),
    )


def matrix_cost(
    plan: MatrixPlan,
    devices: int,
    flops_per_second: float | None,
    say: Callable[[str], None],
    store: Store | None = None,
) -> MatrixCost:
    """`flops_per_second` of one device. None takes what finished items of this plan in `store` reached, and where there
    are none measures this machine with one group's shape and threads."""
    shapes: dict[str, Shape] = {}
    tokenizers: dict[str, Any] = {}
    groups: list[GroupCost] = []
    for group in plan.groups:
        name = group.model.name
        if name not in shapes:
            shapes[name], tokenizers[name] = model_shape(name, say), identify_model(name, announce=say).tokenizer
        contract = group.contract
        groups.append(group_cost(contract, shapes[name], drawn_levels(contract, tokenizers[name]), group.label))
    if flops_per_second is not None:
        return MatrixCost(tuple(groups), flops_per_second, "given", devices)
    if store is not None and (reached := reached_rate(plan, groups, store)) is not None:
        return MatrixCost(tuple(groups), reached.flops / reached.seconds, reached.source, devices)
    rate = probe_flops_per_second(max(shapes.values(), key=lambda shape: shape.parameters), plan.groups[0].threads)
    source = (
        "a matrix product of the largest model's width on this machine, an upper bound: quantizing, loading and "
        "reading come on top; --store takes the rate of finished cells"
    )
    return MatrixCost(tuple(groups), rate, source, devices)


class Reached(NamedTuple):
    flops: float
    seconds: float
    items: int

    @property
    def source(self) -> str:
        return f"what {self.items} finished cells and references of the store reached, with all that they do"


def reached_rate(plan: MatrixPlan, costs: Sequence[GroupCost], store: Store) -> Reached | None:
    """Operations and seconds of what is finished; None where nothing is."""
    flops = seconds = 0.0
    items = 0
    for group, cost in zip(plan.groups, costs, strict=True):
        for each in read_status(store, [group]).items:
            if each.seconds is not None:
                flops += cost.reference_flops if each.item.cell is None else cost.cell_flops
                seconds += each.seconds
                items += 1
    return Reached(flops, seconds, items) if items and seconds else None


def worker_need(plan: MatrixPlan, say: Callable[[str], None]) -> Callable[[Group], int]:
    """Memory that a worker of each group takes, for packing; drawn and counted once a group, when asked."""
    known: dict[str, int] = {}

    def need(group: Group) -> int:
        key = f"{group.model.weights_sha256} {group.workload_sha256}"
        if key not in known:
            shape = model_shape(group.model.name, say)
            contract = group.contract
            # Exact for text; items of tasks have their own lengths, which only a drawn workload tells.
            longest = max(contract.text.prompt_tokens + contract.text.scored_tokens, *_item_tokens(contract))
            known[key] = shape.worker_nbytes(longest)
        return known[key]

    return need


def _item_tokens(contract: Contract) -> list[int]:
    """Lengths that tasks and prompts ask for."""
    asked = [tokens for bound in contract.task.values() for tokens in bound.context_tokens]
    if contract.has_free_running:
        asked.append(contract.free_running.prompt_tokens + contract.free_running.generated_tokens)
    return [0, *asked]


def probe_flops_per_second(shape: Shape, threads: int, seconds: float = 1.0) -> float:
    """Operations a second of products of the model's width with 256 tokens."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = torch.ones(256, shape.hidden), torch.ones(shape.hidden, 4 * shape.hidden)
        torch.mm(left, right)  # the first call also sets up
        began, products = time.monotonic(), 0
        while (spent := time.monotonic() - began) < seconds:
            torch.mm(left, right)
            products += 1
        return 2.0 * 256 * shape.hidden * 4 * shape.hidden * products / spent
    finally:
        torch.set_num_threads(before)
