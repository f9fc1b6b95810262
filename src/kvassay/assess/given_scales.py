"""Scales that a checkpoint brings along, for the arms that they serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.assess.arms import PlannedArm
from kvassay.cache.cohorts import LayerCalibration
from kvassay.core.geometry import CacheGeometry
from kvassay.core.side_names import side_name
from kvassay.errors import CalibrationError, printable
from kvassay.formats.checkpoint_inventory import scale_inventory
from kvassay.formats.checkpoint_scales import read_checkpoint_scales


class GivenScales(NamedTuple):
    """Calibrations by arm name, and what is recorded of where they are from."""

    calibrations: dict[str, dict[int, LayerCalibration]]
    source: str
    """The arms' `scale_source`: layout, folder or file, and the first digits of the digest."""
    record: dict[str, Any]
    """For `subject.json`."""


def read_given_scales(path: Path, arms: Sequence[PlannedArm], geometry: CacheGeometry) -> GivenScales:
    """Scales of a checkpoint folder, or of one file in it, for every arm with static sides of their kind.

    Arms with static sides of another kind are left to the pilot. Raises CalibrationError where no arm takes the scales,
    and by tensor name where they do not fit the model.
    """
    inventory = scale_inventory(path)
    taking = [arm for arm in arms if inventory.spec in (spec for spec in arm.kv_format.specs if spec.needs_calibration)]
    codec = side_name(inventory.spec)
    if not taking:
        raise CalibrationError(
            f"no format of the contract takes the scales of {path.name!r}, which serve {codec}; add kv={codec} to "
            "candidates.order, or leave --scales out"
        )
    unit = ", all scales 1.0" if inventory.all_unit else ""
    digest = inventory.sha256
    where = printable(path.resolve().name)
    return GivenScales(
        {arm.name: read_checkpoint_scales(path, arm.kv_format, geometry, accept_unit_scales=True) for arm in taking},
        f"checkpoint({inventory.layout.value}, {where}, sha256 {digest[:12]}{unit})",
        {
            "name": where,
            "layout": inventory.layout.value,
            "codec": codec,
            "tensors": len(inventory.tensors),
            "tensors_sha256": digest,
            "all_unit": inventory.all_unit,
            "arms": [arm.name for arm in taking],
        },
    )
