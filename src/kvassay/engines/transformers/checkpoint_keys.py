"""What a checkpoint's weights alone say about its keys: the bias of each key projection beside a typical key.

Only the key projections, their biases and the norms before them are read from the safetensors files, one at a time.

The typical norm of a head's keys without bias is ‖W·diag(g)‖ (Frobenius), W being the head's rows of the key
projection and g the weight of the norm before it: for a normalised input x = g·n whose n has unit root mean square and
no preferred direction, E‖Wx‖² is its square. Real inputs have preferred directions, so it is an estimate; the short
text that `kvassay doctor` reads gives the keys themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from kvassay.core.geometry import CacheGeometry
from kvassay.errors import ModelError

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)$")
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "encoder")
_KEY_NORMS = ("k_norm.weight", "key_layernorm.weight", "k_layernorm.weight")


class KeyWeights(NamedTuple):
    """One layer, from its weights. None: the layer has none, or its projection is fused in a way that is not known."""

    projection: str | None
    """`k_proj` or `qkv_proj`; None where keys are projected by a module of another name."""
    bias_norm: float | None
    """Of all KV heads together, as published figures give it."""
    bias_max_abs: float | None
    bias_ratio: float | None
    """The largest ratio, over KV heads, of the norm of a head's bias to its typical norm without bias."""
    typical_norm: float | None
    """Median over KV heads of the estimate above; None where a norm follows the projection."""
    normalises_keys: bool
    """A norm follows the projection, so its bias is no term of the key."""
    learned_sinks: bool


def checkpoint_keys(folder: Path, geometry: CacheGeometry) -> list[KeyWeights]:
    """Figures of each layer of a transformers folder. Raises ModelError for weights that cannot be read."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelError(f"{str(folder)!r} has no model.safetensors; expected a transformers folder with weights")
    found: list[dict[str, Tensor]] = [{} for _ in geometry.layers]
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                _read(tensors, found)
        except (OSError, ValueError) as error:
            raise ModelError(f"{str(file)!r} cannot be read: {' '.join(str(error).split())[:200]}") from error
        except Exception as error:
            if type(error).__name__ != "SafetensorError":
                raise
            raise ModelError(f"{str(file)!r} is damaged: {' '.join(str(error).split())[:200]}") from error
    return [_figures(tensors, index, geometry) for index, tensors in enumerate(found)]


def _read(tensors: Any, found: list[dict[str, Tensor]]) -> None:
    """The few tensors that are needed, by layer and by their name within it."""
    for name in tensors.keys():  # noqa: SIM118  (safe_open is no mapping)
        match = _LAYER.search(name)
        if match is None or any(tower in name for tower in _OTHER_TOWERS):
            continue
        layer, rest = (
            int(match[1]),
            match[2].removeprefix("self_attn.").removeprefix("attn.").removeprefix("attention."),
        )
        wanted = re.fullmatch(r"(?:k_proj|qkv_proj)\.(?:weight|bias)|input_layernorm\.weight|sinks", rest)
        if layer < len(found) and (wanted or rest in _KEY_NORMS):
            found[layer][rest] = tensors.get_tensor(name).to(torch.float32)


def _figures(tensors: dict[str, Tensor], index: int, geometry: CacheGeometry) -> KeyWeights:
    heads, dim = geometry.layers[index].kv_heads, geometry.layers[index].head_dim
    projection = next((name for name in ("k_proj", "qkv_proj") if f"{name}.weight" in tensors), None)
    normalises = any(name in tensors for name in _KEY_NORMS)
    bias_norm = bias_max_abs = bias_ratio = typical = None
    if projection is not None:
        begin = geometry.query_heads * dim if projection == "qkv_proj" else 0
        rows = slice(begin, begin + heads * dim)
        weight = tensors[f"{projection}.weight"]
        if weight.ndim != 2 or weight.shape[0] < begin + heads * dim:
            raise ModelError(
                f"{projection}.weight of layer {index} has shape {list(weight.shape)}; the config says {heads} KV "
                f"heads of size {dim}"
            )
        scale = _norm_scale(tensors, geometry.model_type)
        norms = None
        if scale is not None and not normalises:
            norms = (weight[rows] * scale).unflatten(0, (heads, dim)).square().sum((1, 2)).sqrt()
            typical = float(norms.median())
        bias = tensors.get(f"{projection}.bias")
        if bias is not None:
            by_head = bias[rows].unflatten(0, (heads, dim))
            bias_norm, bias_max_abs = float(by_head.norm()), float(by_head.abs().max())
            if norms is not None:
                bias_ratio = float((by_head.norm(dim=1) / norms.clamp_min(1e-30)).max())
    return KeyWeights(projection, bias_norm, bias_max_abs, bias_ratio, typical, normalises, "sinks" in tensors)


def _norm_scale(tensors: dict[str, Tensor], model_type: str) -> Tensor | None:
    """The weight of the norm before the projection; Gemma stores it less one."""
    scale = tensors.get("input_layernorm.weight")
    if scale is None:
        return None
    return scale + 1 if model_type.startswith("gemma") else scale
