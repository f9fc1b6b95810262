"""What checkpoints call their KV-cache scales: tensor names and configs of the two layouts (`checkpoint_scales`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from kvassay.core.side_names import parse_side, side_name
from kvassay.core.spec import QuantSpec
from kvassay.errors import CalibrationError, FormatError
from kvassay.formats.checkpoint_files import CONFIG, MODELOPT_CONFIG, config_folder, read_json


class ScaleLayout(StrEnum):
    """Whose tensor names and config."""

    LLM_COMPRESSOR = "llm-compressor"
    MODELOPT = "ModelOpt"


class CheckpointScheme(NamedTuple):
    """What a checkpoint says of its KV cache."""

    layout: ScaleLayout
    codec: str
    """The side of a format that its scales serve, for example `fp8-e4m3:tensor`."""


_TENSOR_NAMES = {
    ScaleLayout.LLM_COMPRESSOR: re.compile(r"(?:.+\.)?layers\.([0-9]{1,4})\.self_attn\.([kvq]_scale)"),
    ScaleLayout.MODELOPT: re.compile(r"(?:.+\.)?layers\.([0-9]{1,4})\.self_attn\.[kv]_proj\.([kv]_(?:scale|bias))"),
}
_CODECS = {"float": "fp8-e4m3", "int": "int8"}
_GRANULARITIES = {"tensor": "tensor", "attn_head": "head"}
_ALGORITHMS = {
    "FP8": "fp8-e4m3:tensor",
    "INT8": "int8:tensor",
    "NVFP4": "nvfp4/global=static",
    "NVFP4_AFFINE": "nvfp4/mean/global=static",
}


def checkpoint_scheme(path: Path) -> CheckpointScheme:
    """What the configs of a checkpoint say. Raises CalibrationError where they say nothing usable (B08)."""
    folder = config_folder(path)
    config = _section(folder / CONFIG, "quantization_config")
    modelopt = _section(folder / MODELOPT_CONFIG, "quantization")
    algorithm = modelopt.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo")
    scheme = config.get("kv_cache_scheme")
    if algorithm is None and config.get("quant_method") == "modelopt" and scheme is not None:
        algorithm = {"float": "FP8", "int": "INT8"}.get(str(scheme.get("type"))) if isinstance(scheme, dict) else scheme
    if algorithm is not None:
        if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
            raise CalibrationError(f"kv_cache_quant_algo is {algorithm!r}; known: {', '.join(_ALGORITHMS)}")
        return CheckpointScheme(ScaleLayout.MODELOPT, _ALGORITHMS[algorithm])
    if scheme is None:
        raise CalibrationError(
            f"{folder.name!r} names no KV-cache scales (quantization_config.kv_cache_scheme in {CONFIG}, or "
            f"quantization.kv_cache_quant_algo in {MODELOPT_CONFIG}); calibrate on samples, or use a token-head format"
        )
    return CheckpointScheme(ScaleLayout.LLM_COMPRESSOR, _llm_compressor_codec(scheme))


def scale_names(files: Iterable[str], layout: ScaleLayout) -> dict[tuple[int, str], str]:
    """Tensor name by layer and role (`k_scale`, `v_bias`, ...)."""
    found: dict[tuple[int, str], str] = {}
    for name in files:
        match = _TENSOR_NAMES[layout].fullmatch(name)
        if match is None:
            continue
        key = (int(match[1]), match[2])
        if key in found:
            raise CalibrationError(f"two tensors are the {key[1]} of layer {key[0]}: {found[key]} and {name}")
        found[key] = name
    return found


def tensor_name(layer: int, role: str, layout: ScaleLayout) -> str:
    within = role if layout is ScaleLayout.LLM_COMPRESSOR else f"{role[0]}_proj.{role}"
    return f"model.layers.{layer}.self_attn.{within}"


def scheme_spec(scheme: CheckpointScheme, names: Mapping[tuple[int, str], str]) -> QuantSpec:
    """The spec that the scales serve."""
    codec = scheme.codec
    # ModelOpt names an affine FP8 cache FP8 as well; only its biases tell.
    if "/mean" not in codec and any(role.endswith("_bias") for _, role in names):
        codec += "/mean"
    return parse_side(codec)


def config_section(spec: QuantSpec, layout: ScaleLayout) -> dict[str, dict[str, Any]]:
    """The section of the config that names the spec; raises FormatError where the layout has no name for it."""
    if layout is ScaleLayout.MODELOPT:
        for algorithm, codec in _ALGORITHMS.items():
            if spec == parse_side(codec):
                return {"quantization": {"kv_cache_quant_algo": algorithm}}
        if spec == parse_side("fp8-e4m3:tensor/mean"):
            return {"quantization": {"kv_cache_quant_algo": "FP8"}}
        known = [*_ALGORITHMS.values(), "fp8-e4m3:tensor/mean"]
    else:
        for kind, codec in _CODECS.items():
            for strategy, granularity in _GRANULARITIES.items():
                if spec == parse_side(f"{codec}:{granularity}"):
                    scheme = {"num_bits": 8, "type": kind, "strategy": strategy, "dynamic": False, "symmetric": True}
                    return {"quantization_config": {"kv_cache_scheme": scheme}}
        known = [f"{codec}:{granularity}" for codec in _CODECS.values() for granularity in _GRANULARITIES.values()]
    raise FormatError(f"the {layout.value} layout has no name for {side_name(spec)}; it has {', '.join(known)}")


def _llm_compressor_codec(scheme: Any) -> str:
    if not isinstance(scheme, dict):
        raise CalibrationError(f"kv_cache_scheme is {scheme!r}; expected an object with num_bits, type and strategy")
    defaults = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    found = {**defaults, **{field: value for field, value in scheme.items() if value is not None}}
    for field, usable in (
        ("num_bits", (8,)),
        ("type", tuple(_CODECS)),
        ("strategy", tuple(_GRANULARITIES)),
        ("dynamic", (False,)),
        ("symmetric", (True,)),
    ):
        if found[field] not in usable:
            raise CalibrationError(
                f"kv_cache_scheme.{field} is {found[field]!r}; expected {' or '.join(map(repr, usable))}; "
                "other schemes have no static scales that kvassay reads"
            )
    return f"{_CODECS[found['type']]}:{_GRANULARITIES[found['strategy']]}"


def _section(path: Path, name: str) -> dict[str, Any]:
    section = read_json(path).get(name) or {}
    if not isinstance(section, dict):
        raise CalibrationError(f"{name} of {path.name} is a {type(section).__name__}; expected an object")
    return section
