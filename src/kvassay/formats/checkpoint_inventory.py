"""What a checkpoint says of its KV scales, without a model: every tensor, what it serves, and a digest."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from kvassay.core.digest import sha256_bytes, sha256_json
from kvassay.core.spec import QuantSpec
from kvassay.errors import CalibrationError
from kvassay.formats.calibration import all_unit
from kvassay.formats.checkpoint_files import read_tensors, tensor_files
from kvassay.formats.checkpoint_scales import require_usable_tensors
from kvassay.formats.checkpoint_schemes import ScaleLayout, checkpoint_scheme, scale_names, scheme_spec


class HeldTensor(NamedTuple):
    """A scale or mean as a checkpoint holds it."""

    layer: int
    role: str
    """`k_scale`, `v_scale`, `q_scale`, `k_bias` or `v_bias`."""
    name: str
    file: str
    tensor: Tensor


class ScaleInventory(NamedTuple):
    """All that a checkpoint says of its KV scales, whatever the model."""

    layout: ScaleLayout
    spec: QuantSpec
    """The side that the scales serve."""
    tensors: tuple[HeldTensor, ...]
    """By layer and role."""

    @property
    def sha256(self) -> str:
        """Of every name, shape and value (as float32)."""
        return sha256_json(
            {
                each.name: [list(each.tensor.shape), sha256_bytes(each.tensor.contiguous().numpy().tobytes())]
                for each in self.tensors
            }
        )

    @property
    def all_unit(self) -> bool:
        return all_unit(each.tensor for each in self.tensors if each.role.endswith("_scale"))


def scale_inventory(path: Path) -> ScaleInventory:
    """Every scale of a checkpoint folder, or of one file in it. Raises CalibrationError, by name, for unusable ones."""
    scheme = checkpoint_scheme(path)
    files = tensor_files(path)
    names = scale_names(files, scheme.layout)
    if not names:
        raise CalibrationError(
            f"{path.name!r} has no scales, though its config names {scheme.codec} ({scheme.layout.value} layout); "
            "calibrate on samples, or use a token-head format"
        )
    tensors = read_tensors(files, names.values())
    require_usable_tensors({name: role for (_, role), name in names.items()}, tensors)
    held = [
        HeldTensor(layer, role, name, files[name].name, tensors[name]) for (layer, role), name in sorted(names.items())
    ]
    return ScaleInventory(scheme.layout, scheme_spec(scheme, names), tuple(held))
