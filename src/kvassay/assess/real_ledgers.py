"""Ledgers of real caches: each arm's cache is filled with a document's keys and values and its storages are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedConfig

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Level, Subject
from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.core.ledger import ByteLedger, predict_ledger
from kvassay.engines.transformers.decode_scorer import ReferencePass
from kvassay.engines.transformers.loading import LoadedModel
from kvassay.pack.reader import ArmLedgers


def ledger_token_ids(levels: Sequence[Level]) -> Sequence[int]:
    """The tokens whose cache is counted: one text document, or the longest item without text."""
    level = levels[0]
    units = level.units[:1] if level.is_text else level.units
    return max((level.token_ids(unit) for unit in units), key=len)


def measure_ledgers(loaded: LoadedModel, levels: Sequence[Level], subject: Subject) -> dict[str, ArmLedgers]:
    """Computed beside allocated ledgers of every arm."""
    token_ids = ledger_token_ids(levels)
    reference = subject.scorer.reference(torch.tensor(token_ids))
    return {
        arm.name: ArmLedgers(
            predict_ledger(loaded.geometry, arm.kv_format, len(token_ids)),
            allocated_ledger(
                loaded.model.config,
                arm,
                reference,
                subject.calibrations.get(arm.name),
                subject.scorer.key_transforms(arm.kv_format),
            ),
        )
        for arm in subject.arms
    }


def allocated_ledger(
    config: PreTrainedConfig,
    arm: PlannedArm,
    reference: ReferencePass,
    calibration: Mapping[int, LayerCalibration] | None,
    key_transforms: Mapping[int, KeyTransform] | None = None,
) -> ByteLedger:
    """The ledger of a cache that holds the whole document."""
    cache = QuantizedCache(
        config, arm.kv_format, calibration=calibration, on_clip="count", key_transforms=key_transforms
    )
    for layer, (keys, values) in enumerate(zip(reference.keys, reference.values, strict=True)):
        cache.update(keys, values, layer)
    return cache.ledger()
