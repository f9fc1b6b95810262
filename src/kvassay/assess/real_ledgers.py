"""Ledgers of real caches: each arm's cache is filled with a document's keys and values and its storages are summed."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedConfig

from kvassay.assess.arms import PlannedArm
from kvassay.cache.quantized_cache import LayerCalibration, QuantizedCache
from kvassay.core.ledger import ByteLedger
from kvassay.engines.transformers.decode_scorer import ReferencePass


def allocated_ledger(
    config: PreTrainedConfig,
    arm: PlannedArm,
    reference: ReferencePass,
    calibration: Mapping[int, LayerCalibration] | None,
) -> ByteLedger:
    """The ledger of a cache that holds the whole document."""
    cache = QuantizedCache(config, arm.kv_format, calibration=calibration, on_clip="count")
    for layer, (keys, values) in enumerate(zip(reference.keys, reference.values, strict=True)):
        cache.update(keys, values, layer)
    return cache.ledger()
