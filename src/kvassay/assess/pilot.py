"""The pilot: a few documents and items that fix static scales, tell the spread, and time the run.

Its rows are never part of the verdict: planning from the data that is then judged would bias the judgement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from kvassay.assess.arms import PlannedArm
from kvassay.assess.document_rows import Calibrations
from kvassay.assess.given_scales import GivenScales
from kvassay.assess.measurement import Columns, Subject, Tally, measure_documents, measure_items
from kvassay.assess.progress import Progress
from kvassay.assess.workload import Workload, item_ids
from kvassay.cache.cohorts import LayerCalibration
from kvassay.core.calibration_policy import CalibrationPolicy, parse_policy
from kvassay.core.contract import Contract
from kvassay.engines.transformers.decode_scorer import DecodeScorer

MOST_CALIBRATION_ITEMS = 4


class DocumentMeans(NamedTuple):
    """Means over one document's decode positions, in nats per token; `exceed_rate` is a share."""

    kl_nats: float
    exceed_rate: float | None
    nll_delta_nats: float


class PairedCounts(NamedTuple):
    n: int
    losses: int
    gains: int


class Pilot(NamedTuple):
    calibrations: Calibrations
    calibration_sources: dict[str, str]
    documents: dict[str, list[DocumentMeans]]
    """By arm, one entry a pilot document."""
    items: dict[str, PairedCounts]
    seconds_per_document: float
    seconds_per_item: float


def run_pilot(
    contract: Contract,
    scorer: DecodeScorer,
    tokenizer: PreTrainedTokenizerBase,
    arms: Sequence[PlannedArm],
    workload: Workload,
    progress: Progress,
    given: GivenScales | None = None,
) -> Pilot:
    """Calibrate what needs it and has no `given` scales, then measure documents and items under all arms."""
    progress.stage("pilot", len(workload.pilot_documents) + len(workload.pilot_items))
    known = {} if given is None else given.calibrations
    policy = parse_policy(contract.inference.calibration)
    measured = _calibrate(scorer, [arm for arm in arms if arm.name not in known], workload, policy)
    calibrations = {**measured, **known}
    subject = Subject(scorer, tokenizer, tuple(arms), calibrations, contract.subject.reference_kv)
    documents: dict[str, list[DocumentMeans]] = defaultdict(list)
    counts: dict[str, PairedCounts] = {}

    def on_tokens(columns: Columns) -> None:
        documents[columns["arm"][0]].append(_means(columns, contract))

    def on_items(columns: Columns) -> None:
        for arm, before, after in zip(
            columns["arm"], columns["reference_correct"], columns["candidate_correct"], strict=True
        ):
            seen = counts.get(arm, PairedCounts(0, 0, 0))
            counts[arm] = PairedCounts(
                seen.n + 1, seen.losses + (before and not after), seen.gains + (after and not before)
            )

    tally = Tally()
    prompt = contract.text.prompt_tokens
    document_seconds = measure_documents(subject, workload.pilot_documents, prompt, on_tokens, tally, progress)
    item_seconds = measure_items(subject, workload.pilot_items, on_items, tally, progress)
    return Pilot(
        calibrations=calibrations,
        calibration_sources={
            **{name: _source(scales) for name, scales in measured.items()},
            **({} if given is None else dict.fromkeys(known, given.source)),
        },
        documents=dict(documents),
        items=counts,
        seconds_per_document=document_seconds / max(1, len(workload.pilot_documents)),
        seconds_per_item=item_seconds / max(1, len(workload.pilot_items)),
    )


def _calibrate(
    scorer: DecodeScorer, arms: Sequence[PlannedArm], workload: Workload, policy: CalibrationPolicy
) -> dict[str, dict[int, LayerCalibration]]:
    needing = [arm for arm in arms if any(spec.needs_calibration for spec in arm.kv_format.specs)]
    if not needing:
        return {}
    sequences = [document.token_ids for document in workload.pilot_documents] or [
        item_ids(item) for item in workload.pilot_items[:MOST_CALIBRATION_ITEMS]
    ]
    references = [scorer.reference(torch.tensor(token_ids)) for token_ids in sequences]
    return {arm.name: scorer.calibrate(arm.kv_format, references, policy) for arm in needing}


def _source(scales: Any) -> str:
    """All layers are calibrated on the same tokens, so any side tells."""
    layer: LayerCalibration = next(iter(scales.values()))
    return next(side.source for sides in layer for side in sides if side is not None)


def _means(columns: Columns, contract: Contract) -> DocumentMeans:
    kl = torch.tensor(columns["kl_nats"], dtype=torch.float64)
    reference = torch.tensor(columns["nll_reference_nats"], dtype=torch.float64)
    candidate = torch.tensor(columns["nll_candidate_nats"], dtype=torch.float64)
    exceed = contract.fidelity.kl_exceed
    return DocumentMeans(
        kl_nats=float(kl.mean()),
        exceed_rate=None if exceed is None else float((kl > exceed.tau_nats).double().mean()),
        nll_delta_nats=float((candidate - reference).mean()),
    )
