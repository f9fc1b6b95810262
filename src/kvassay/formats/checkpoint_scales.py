"""KV-cache scales that a checkpoint carries, in the two layouts that engines read.

llm-compressor: `...layers.N.self_attn.k_scale`, `v_scale`, and `q_scale` where queries are quantized too; `config.json`
has `quantization_config.kv_cache_scheme` (num_bits 8, type float or int, strategy tensor `[1]` or attn_head
`[kv_heads, 1, 1]`, dynamic false, symmetric true), as compressed-tensors' `initialize_attn_qparams` shapes them.
ModelOpt: `...layers.N.self_attn.k_proj.k_scale`, `v_proj.v_scale`, and `k_bias`, `v_bias` (a mean of each channel,
`[1, kv_heads, 1, head_dim]`) in the affine variants; `hf_quant_config.json` has `quantization.kv_cache_quant_algo`, as
its `export/quant_utils.py` writes them: max|x| / 448 for FP8 (which it raises to 1.0 at least), / (6 · 448) for NVFP4.

In both a scale multiplies codes: x̂ = code · scale. The prefix before `layers` may be any, but only one: a checkpoint
that has two scales for a layer is refused, as are scales that are missing, misshapen, zero, negative or not finite, all
by tensor name. Layers beyond the geometry's last (draft heads) are not read. All scales 1.0 give a UnitScaleWarning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import HeadGroup, KVFormat, head_groups
from kvassay.core.side_names import side_name
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import CalibrationError, FormatError
from kvassay.formats.base import Calibration
from kvassay.formats.calibration import all_unit, note_unit_scales, require_usable_scales
from kvassay.formats.checkpoint_files import (
    CONFIG,
    MODELOPT_CONFIG,
    read_json,
    read_tensors,
    tensor_files,
    write_json,
    write_tensors,
)
from kvassay.formats.checkpoint_schemes import (
    ScaleLayout,
    checkpoint_scheme,
    config_section,
    scale_names,
    scheme_spec,
    tensor_name,
)

__all__ = [
    "ScaleLayout",
    "check_writable",
    "checkpoint_scheme",
    "read_checkpoint_scales",
    "read_query_scales",
    "write_checkpoint_scales",
]

Scales = dict[int, tuple[tuple[Calibration | None, Calibration | None], ...]]
"""By layer, one (keys, values) pair a head group: what `QuantizedCache(calibration=...)` takes."""

_SIDES = (("k", "keys"), ("v", "values"))


def read_checkpoint_scales(
    folder: Path, kv_format: KVFormat, geometry: CacheGeometry, *, accept_unit_scales: bool = False
) -> Scales:
    """Calibrations of every layer of `kv_format` that needs them, from a checkpoint folder or one file in it.

    `accept_unit_scales` says that a plain cast is meant, and silences the warning; the source still tells.
    """
    scheme = checkpoint_scheme(folder)
    files = tensor_files(folder)
    names = scale_names(files, scheme.layout)
    spec = scheme_spec(scheme, names)
    needed: dict[int, tuple[HeadGroup, ...]] = {}
    for layer, shape in enumerate(geometry.layers):
        groups = head_groups(kv_format, layer, shape)
        static = [side.spec for group in groups for side in (group.keys, group.values) if side.spec.needs_calibration]
        if other := next((found for found in static if found != spec), None):
            raise CalibrationError(
                f"layer {layer} of {kv_format.name} needs scales for {side_name(other)}; the checkpoint has those of "
                f"{side_name(spec)} ({scheme.layout.value} layout)"
            )
        if static:
            needed[layer] = groups
    if not needed:
        raise CalibrationError(f"{kv_format.name} has no static scales; the checkpoint's serve {side_name(spec)}")
    roles = ["k_scale", "v_scale", *(["k_bias", "v_bias"] if spec.mean else [])]
    wanted = {(layer, role): _name(names, layer, role, scheme.layout) for layer in needed for role in roles}
    tensors = read_tensors(files, wanted.values())
    require_usable_tensors({name: role for (_, role), name in wanted.items()}, tensors)
    scales = [tensors[name] for (_, role), name in wanted.items() if role.endswith("_scale")]
    unit = ", all scales 1.0" if all_unit(scales) else ""
    if unit and not accept_unit_scales:
        note_unit_scales(
            f"checkpoint {folder.name!r} ({scheme.layout.value})", scales, "pass accept_unit_scales if a cast is meant"
        )

    def side(layer: int, letter: str, group: HeadGroup) -> Calibration:
        shape = geometry.layers[layer]
        name = wanted[layer, f"{letter}_scale"]
        parameters = _scale_parameters(spec, name, tensors[name], shape, group.heads)
        if spec.mean:
            bias = wanted[layer, f"{letter}_bias"]
            dim = shape.head_dim if letter == "k" else shape.value_dim
            parameters["mean"] = _mean(bias, tensors[bias], shape.kv_heads, dim, group.heads)
        return Calibration(parameters, f"checkpoint({scheme.layout.value}, {name}{unit})")

    return {
        layer: tuple(
            (
                side(layer, "k", group) if group.keys.spec.needs_calibration else None,
                side(layer, "v", group) if group.values.spec.needs_calibration else None,
            )
            for group in groups
        )
        for layer, groups in needed.items()
    }


def read_query_scales(folder: Path, geometry: CacheGeometry) -> dict[int, Tensor]:
    """`q_scale` by layer, float32 `[1]` or `[query_heads]`; empty where the checkpoint has none."""
    scheme = checkpoint_scheme(folder)
    files = tensor_files(folder)
    found = {layer: name for (layer, role), name in scale_names(files, scheme.layout).items() if role == "q_scale"}
    wanted = {layer: name for layer, name in found.items() if layer < geometry.num_layers}
    tensors = read_tensors(files, wanted.values())
    for name in wanted.values():
        require_usable_scales(name, tensors[name])
        if tensors[name].numel() not in (1, geometry.query_heads):
            raise CalibrationError(_wrong_shape(name, tensors[name], "[1]", f"[{geometry.query_heads}, 1, 1]"))
    return {layer: tensors[name].flatten() for layer, name in wanted.items()}


def write_checkpoint_scales(
    folder: Path,
    calibration: Mapping[int, tuple[tuple[Calibration | None, Calibration | None], ...]],
    kv_format: KVFormat,
    layout: ScaleLayout,
    *,
    query_scales: Mapping[int, Tensor] | None = None,
) -> None:
    """Add scales to a checkpoint folder: a file of their own, the index where there is one, and the config.

    Exactly two scale tensors a layer of `calibration`, and a `q_scale` for each of `query_scales`. Refused where the
    folder has scales already, where keys and values differ in spec, or where the layout has no name for the spec.
    """
    if query_scales and layout is ScaleLayout.MODELOPT:
        raise FormatError("ModelOpt's layout has no name for query scales; use the llm-compressor layout")
    check_writable(folder, kv_format, layout)
    spec = kv_format.keys
    config = config_section(spec, layout)
    tensors: dict[str, Tensor] = {}
    for layer, groups in calibration.items():
        for index, (letter, side) in enumerate(_SIDES):
            given = groups[0][index]
            if given is None:
                raise CalibrationError(f"layer {layer} has no calibration of its {side}; calibrate both sides")
            for role, tensor in _written(spec, letter, given, layout):
                tensors[tensor_name(layer, role, layout)] = tensor
    for layer, tensor in (query_scales or {}).items():
        heads = spec.granularity is Granularity.HEAD
        tensors[tensor_name(layer, "q_scale", layout)] = tensor.reshape(-1, 1, 1) if heads else tensor.reshape(1)
    for name, tensor in tensors.items():
        if name.endswith("_scale"):
            require_usable_scales(name, tensor)
    sources = {side.source for groups in calibration.values() for side in groups[0] if side is not None}
    held = {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}
    write_tensors(folder, held, "; ".join(sorted(sources))[:1000])
    path = folder / (CONFIG if layout is ScaleLayout.LLM_COMPRESSOR else MODELOPT_CONFIG)
    before = read_json(path)
    section = next(iter(config))
    write_json(path, {**before, section: {**(before.get(section) or {}), **config[section]}})


def check_writable(folder: Path, kv_format: KVFormat, layout: ScaleLayout) -> None:
    """Raise FormatError or CalibrationError where `write_checkpoint_scales` would, as far as no scale is needed."""
    if kv_format.values != kv_format.keys or kv_format.overrides:
        raise FormatError(
            f"{kv_format.name} stores some keys and values differently; a checkpoint has one KV scheme, so write for "
            "example kv=fp8-e4m3:tensor, with skip= for layers left out"
        )
    config_section(kv_format.keys, layout)
    if list(folder.glob("*.safetensors")):
        files = tensor_files(folder)
        if present := [name for each in ScaleLayout for name in scale_names(files, each).values()]:
            raise CalibrationError(f"{folder.name!r} has scales already, for example {present[0]}; write to a copy")


def _name(names: Mapping[tuple[int, str], str], layer: int, role: str, layout: ScaleLayout) -> str:
    name = names.get((layer, role))
    if name is None:
        raise CalibrationError(
            f"{tensor_name(layer, role, layout)} is missing: the checkpoint has {role} for "
            f"{sum(found == role for _, found in names)} layers and not for layer {layer}; leave the layer out with "
            f"skip={layer}, or calibrate on samples"
        )
    return name


def require_usable_tensors(roles: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """By tensor name (B25)."""
    for name, role in roles.items():
        if role.endswith("_scale"):
            require_usable_scales(name, tensors[name])
        elif not bool(torch.isfinite(tensors[name]).all()):
            raise CalibrationError(f"{name} holds NaN or infinity; expected a finite mean of each channel")


def _scale_parameters(
    spec: QuantSpec, name: str, tensor: Tensor, shape: LayerGeometry, heads: tuple[int, ...]
) -> dict[str, Tensor]:
    if spec.granularity is Granularity.HEAD:
        if tensor.numel() != shape.kv_heads or tensor.shape.numel() != max(tensor.shape, default=1):
            raise CalibrationError(_wrong_shape(name, tensor, f"[{shape.kv_heads}, 1, 1]"))
        return {"scale": tensor.reshape(-1, 1, 1)[list(heads)]}
    if tensor.numel() != 1:
        raise CalibrationError(_wrong_shape(name, tensor, "[1]"))
    return {"scale" if spec.is_static else "global_scale": tensor.reshape(1, 1, 1)}


def _mean(name: str, tensor: Tensor, kv_heads: int, dim: int, heads: tuple[int, ...]) -> Tensor:
    flat = [size for size in tensor.shape if size != 1]
    if flat not in ([size for size in (kv_heads, dim) if size != 1], [kv_heads * dim]):
        raise CalibrationError(_wrong_shape(name, tensor, f"[1, {kv_heads}, 1, {dim}]"))
    return tensor.reshape(kv_heads, 1, dim)[list(heads)]


def _wrong_shape(name: str, tensor: Tensor, *expected: str) -> str:
    return f"{name} has shape {list(tensor.shape)}; expected {' or '.join(expected)}"


def _written(
    spec: QuantSpec, letter: str, calibration: Calibration, layout: ScaleLayout
) -> Iterable[tuple[str, Tensor]]:
    """Roles and tensors of one side, shaped as the layout has them."""
    scale = calibration.parameters["scale" if spec.is_static else "global_scale"]
    if spec.granularity is Granularity.HEAD:
        yield f"{letter}_scale", scale.reshape(-1, 1, 1)
    else:
        yield f"{letter}_scale", scale.reshape(1 if layout is ScaleLayout.LLM_COMPRESSOR else ())
    if spec.mean:
        yield f"{letter}_bias", calibration.parameters["mean"].unsqueeze(0)
