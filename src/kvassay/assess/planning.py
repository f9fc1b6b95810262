"""The plan, before the run: what n the contract asks for, what n is needed, with what chance, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.assess.pilot import DocumentMeans, PairedCounts, Pilot
from kvassay.assess.workload import Workload, item_ids
from kvassay.core.contract import Contract
from kvassay.stats.planning import documents_power, pairs_power, plan_documents, plan_pairs


class _Mean(NamedTuple):
    """A pilot's mean over documents and its coefficient of variation."""

    mean: float
    variation: float | None
    """None where the mean is zero."""


def plan_record(contract: Contract, arms: Sequence[PlannedArm], pilot: Pilot, workload: Workload) -> dict[str, Any]:
    """The plan as JSON: one entry an arm and clause, the pilot behind it, and the expected cost."""
    clauses = [entry for arm in arms for entry in _arm_clauses(contract, arm, pilot)]
    return {
        "contract_sha256": contract.sha256,
        "power_asked": contract.inference.power,
        "pilot": {
            "documents": len(workload.pilot_documents),
            "document_ids": [document.id for document in workload.pilot_documents],
            "items": len(workload.pilot_items),
        },
        "clauses": clauses,
        "cost": _cost(contract, arms, pilot, workload),
    }


def _arm_clauses(contract: Contract, arm: PlannedArm, pilot: Pilot) -> list[dict[str, Any]]:
    fidelity, entries = contract.fidelity, []
    documents = pilot.documents.get(arm.name, [])
    for clause, bound, field in (
        ("fidelity.kl_mean", fidelity.kl_mean and fidelity.kl_mean.max, "kl_nats"),
        ("fidelity.kl_exceed", fidelity.kl_exceed and fidelity.kl_exceed.max_rate, "exceed_rate"),
        ("fidelity.nll_delta", fidelity.nll_delta and fidelity.nll_delta.max, "nll_delta_nats"),
    ):
        if bound is not None:
            entries.append(_document_entry(contract, arm, clause, bound, _spread(documents, field)))
    if recall := contract.task.get("recall"):
        counts = pilot.items.get(arm.name, PairedCounts(0, 0, 0))
        entries.append(_pairs_entry(contract, arm, recall.margin, recall.items, counts))
    return entries


def _document_entry(contract: Contract, arm: PlannedArm, clause: str, limit: float, spread: _Mean) -> dict[str, Any]:
    alpha, power = contract.inference.alpha, contract.inference.power
    planned = contract.text.documents
    mean, variation = spread
    if variation is None:
        return {
            "arm": arm.name,
            "role": arm.role.value,
            "clause": clause,
            "unit": _unit(clause),
            "expected": mean,
            "limit": limit,
            "n_planned": planned,
            "n_needed": None,
            "n_unit": "documents",
            "power": None,
            "assumption": "the pilot saw no difference at all, so it tells no spread",
        }
    # Towards BREACHED the same formula holds with both signs turned.
    sign = 1 if mean < limit else -1
    needed = plan_documents(sign * mean, variation, sign * limit, alpha, power).documents
    return {
        "arm": arm.name,
        "role": arm.role.value,
        "clause": clause,
        "unit": _unit(clause),
        "expected": mean,
        "limit": limit,
        "n_planned": planned,
        "n_needed": needed,
        "n_unit": "documents",
        "power": documents_power(planned, sign * mean, variation, sign * limit, alpha),
        "assumption": f"pilot mean {mean:.3g}, CV {variation:.2f} between documents, towards {_towards(sign > 0)}",
    }


def _pairs_entry(
    contract: Contract, arm: PlannedArm, margin: float, planned: int, counts: PairedCounts
) -> dict[str, Any]:
    # Laplace's rule: a pilot of a few items that saw no discordance does not show that there is none.
    discordance = (counts.losses + counts.gains + 1) / (counts.n + 2)
    delta = (counts.gains - counts.losses) / (counts.n + 2)
    plan = plan_pairs(margin, discordance, delta, contract.inference.alpha, contract.inference.power)
    inside, on_margin = margin + delta > 0, margin + delta == 0
    power = None if on_margin else pairs_power(planned, margin, discordance, delta, contract.inference.alpha)
    direction = "on the margin, which no number of contexts decides" if on_margin else f"towards {_towards(inside)}"
    return {
        "arm": arm.name,
        "role": arm.role.value,
        "clause": "task.recall",
        "unit": "share of items",
        "expected": delta,
        "limit": -margin,
        "n_planned": planned,
        "n_needed": plan.pairs,
        "n_unit": "contexts",
        "power": power,
        "assumption": f"discordance {discordance:.2f}, difference {delta:+.2f} (pilot of {counts.n}), "
        f"{direction}; without any discordant pair {plan.undiscordant_exact}",
    }


def _spread(documents: Sequence[DocumentMeans], field: str) -> _Mean:
    values = [getattr(document, field) for document in documents]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return _Mean(mean, math.sqrt(variance) / abs(mean) if mean else None)


def _towards(inside: bool) -> str:
    return "MET" if inside else "BREACHED"


def _unit(clause: str) -> str:
    return "share" if clause == "fidelity.kl_exceed" else "nats/token"


def _cost(contract: Contract, arms: Sequence[PlannedArm], pilot: Pilot, workload: Workload) -> dict[str, Any]:
    sequences = [(document.token_ids, contract.text.prompt_tokens) for document in workload.documents]
    sequences += [(item_ids(item), len(item.prompt_ids)) for item in workload.items]
    total = sum(len(token_ids) for token_ids, _ in sequences)
    prompt = sum(tokens for _, tokens in sequences)
    # Under exact prefill the prompt's keys and values are the reference's, so candidates run the rest alone.
    run_again = total - prompt if contract.inference.prefill_reads == "exact" else total
    seconds = pilot.seconds_per_document * len(workload.documents) + pilot.seconds_per_item * len(workload.items)
    return {"reference_tokens": total, "candidate_tokens": run_again * len(arms), "seconds_expected": seconds}
