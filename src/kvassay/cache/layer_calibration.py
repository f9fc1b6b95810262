"""What a layer was given: static scales and a key transform, and whether they are what the format needs."""

from __future__ import annotations

from collections.abc import Mapping

from kvassay.cache.cohorts import LayerCalibration
from kvassay.cache.key_transform import KeyTransform
from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.errors import CalibrationError, FormatError
from kvassay.formats.calibration import require_calibration


def layer_calibration(
    calibration: Mapping[int, LayerCalibration] | None, kv_format: KVFormat, layer: int, geometry: LayerGeometry
) -> LayerCalibration:
    """What was given for a layer, or nothing for each of its head groups."""
    groups = head_groups(kv_format, layer, geometry)
    given = (calibration or {}).get(layer, ((None, None),) * len(groups))
    if len(given) != len(groups):
        raise CalibrationError(
            f"layer {layer} of {kv_format.name} has {len(groups)} head groups, the calibration has {len(given)}; "
            "calibrate for this format"
        )
    return given


def require_layer_calibration(
    kv_format: KVFormat, layer: int, geometry: LayerGeometry, scales: LayerCalibration
) -> None:
    """Raise CalibrationError unless `scales` has every static array that the format needs in this layer."""
    for group, sides in zip(head_groups(kv_format, layer, geometry), scales, strict=True):
        for name, plan, calibration in zip(("keys", "values"), (group.keys, group.values), sides, strict=True):
            if not plan.spec.needs_calibration:
                continue
            where = f"the {name} of layer {layer}"
            if calibration is None:
                raise CalibrationError(
                    f"{kv_format.name} has static scales or means for {where} and got none; pass calibration=, or use "
                    "a token-head format"
                )
            dim = geometry.head_dim if name == "keys" else geometry.value_dim
            require_calibration(plan.spec, len(group.heads), dim, calibration.parameters, calibration.source, where)


def required_key_transform(
    kv_format: KVFormat, layer: int, given: Mapping[int, KeyTransform] | None
) -> KeyTransform | None:
    """The transform of one layer; never one for a format that does not ask for it."""
    if not kv_format.transforms_keys:
        return None
    if given is None or layer not in given:
        raise FormatError(
            f"{kv_format.name} needs the model's key bias and rotary embedding, and got none for layer {layer}; "
            "make the cache with QuantizedCache.for_model(model, format), or pass key_transforms="
        )
    return given[layer]
