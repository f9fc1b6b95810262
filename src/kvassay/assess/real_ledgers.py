"""Ledgers of real caches: each arm's cache is filled with a document's keys and values and its storages are summed."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from kvassay.assess.arms import PlannedArm
from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.cache.quantized_cache import QuantizedCache
from kvassay.core.ledger import ByteLedger
from kvassay.engines.transformers.decode_scorer import ReferencePass


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
