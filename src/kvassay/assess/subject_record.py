"""What was measured, as evidence records it: the model, its workload, and each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from kvassay.assess.arms import PlannedArm
from kvassay.assess.levels.base import Level, Tally
from kvassay.core.contract import Contract
from kvassay.core.digest import sha256_json
from kvassay.core.kv_format import KVFormat
from kvassay.core.records import Arm
from kvassay.core.spec import QuantSpec
from kvassay.engines.transformers.loading import LoadedModel
from kvassay.formats import quantizer


def subject_record(
    model_name: str,
    contract: Contract,
    loaded: LoadedModel,
    levels: Sequence[Level],
    scales: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """`scales` is the record of a checkpoint's scales, where some were given."""
    return {
        "model": {
            "name": model_name,
            "source": loaded.source.kind.value,
            "stored_weights": loaded.stored_weights,
            "revision": loaded.revision,
            "weights_sha256": loaded.hashes.weights,
            "weight_files_sha256": loaded.hashes.weight_files,
            "tokenizer_sha256": loaded.hashes.tokenizer,
            "config_sha256": loaded.hashes.config,
            "parameters": loaded.parameters,
            "dtype": "float32",
            "weights": contract.subject.weights,
            "quantized_weights": loaded.quantized_weights and loaded.quantized_weights._asdict(),
        },
        "engine": {
            "name": "transformers",
            "version": metadata.version("transformers"),
            "attention": "decode-faithful, one pass, torch reference path",
            "prefill_reads": contract.inference.prefill_reads,
        },
        "geometry": loaded.geometry.model_dump(mode="json"),
        "corpus": None,
        "numeric": None,
        "items_sha256": sha256_json([]),
        "task": {},
        **{key: value for level in levels for key, value in level.to_json().items()},
        "scales": None if scales is None else dict(scales),
        "examples": [example for level in levels for example in level.examples_json()],
    }


def arm_record(arm: PlannedArm, calibrated: str | None, tally: Tally) -> Arm:
    """`calibrated` says where the arm's static scales come from; None for a format that has none."""
    return Arm(
        name=arm.name,
        role=arm.role,
        format_digest=arm.kv_format.digest,
        format=arm.kv_format.model_dump(mode="json"),
        scale_source=scale_source(arm.kv_format, calibrated),
        clipped_values=tally.clipped[arm.name],
        encoded_values=tally.encoded[arm.name],
    )


def scale_source(kv_format: KVFormat, calibrated: str | None) -> str:
    """Where the scales of a format come from, for both sides: never empty."""

    def of(spec: QuantSpec) -> str:
        if spec.needs_calibration:
            assert calibrated, "static formats are calibrated by the pilot"
            return calibrated
        return quantizer(spec).scale_source

    keys, values = of(kv_format.keys), of(kv_format.values)
    return keys if keys == values else f"keys {keys}, values {values}"
