"""Key transforms of a loaded transformers model, checked against what the model itself puts into a cache.

How a model turns a projection into a key is nowhere declared: which channels form a pair, how many of them turn, which
layers have no position embedding or one of their own, whether a norm stands between. So a short run records each
layer's projection and its cached keys, and the one way that leads from the first to the second is taken. Cosines come
from the model's rotary module, which covers every kind of RoPE that transformers knows (linear, yarn, llama3, longrope,
partial, by layer type). Where no way matches, the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from kvassay.cache.key_transform import KeyTransform, Pairing, PositionTables, RotaryKeyTransform, Rotation
from kvassay.core.geometry import CacheGeometry, LayerGeometry, geometry_from_config
from kvassay.core.kv_format import KVFormat
from kvassay.errors import ModelError

_PROBE_TOKENS = 23
_TOLERANCE = 1e-4
"""Largest difference of a key, as a share of the layer's largest key; 16-bit models round more."""
_NORMS = ("k_norm", "key_layernorm", "k_layernorm", "key_norm")


class _Source(NamedTuple):
    """What a layer's keys are before position embedding, and the bias that is in them."""

    name: str
    keys: Tensor
    bias: Tensor | None
    is_projection: bool


class LayerKeys(NamedTuple):
    """How one layer makes its keys."""

    rotation: Rotation | None
    """None without position embedding."""
    bias: Tensor | None
    """`[kv_heads, head_dim]`, before rotation."""
    source: str
    """The module whose output is rotated: `k_proj`, `qkv_proj`, or a norm after it."""
    is_projection: bool
    """False where a norm stands between, so that a bias is no term of the key."""


class _RotaryModule(NamedTuple):
    """A rotary module as one layer calls it; modules with one set of frequencies a layer type are told the type."""

    module: Any
    layer_type: str | None

    @property
    def kind(self) -> str:
        found = getattr(self.module, "rope_type", "default")
        return str(found.get(self.layer_type) if isinstance(found, dict) else found)

    @property
    def max_positions(self) -> int | None:
        if self.kind != "longrope":
            return None
        given = self.module.config.rope_parameters
        if self.layer_type is not None:
            given = given[self.layer_type]
        return int(given["original_max_position_embeddings"])

    def cosines(self, like: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine as the module gives them, `[count, channels]`."""
        positions = torch.arange(first, first + count, device=like.device)[None]
        more = {} if self.layer_type is None else {"layer_type": self.layer_type}
        with torch.no_grad():
            found = self.module(like, positions, **more)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Tensor) for part in found)):
            raise ModelError(f"{type(self.module).__name__} gives no cosine and sine; this rotary embedding is unknown")
        return found[0][0], found[1][0]


@torch.no_grad()
def layer_keys(model: PreTrainedModel) -> list[LayerKeys]:
    """How each layer of `model` makes its keys. Runs a few tokens; raises ModelError where none is known."""
    geometry = geometry_from_config(model.config.to_dict())
    attention = _attention_modules(model, geometry)
    sources, cached = _probe(model, geometry, attention)
    tables: dict[tuple[int, str | None, str], PositionTables] = {}
    found = []
    for layer, module in enumerate(attention):
        rotary = _rotary_module(model, module, layer)
        if rotary is not None and "dynamic" in rotary.kind:
            raise ModelError(
                f"{type(model).__name__} has dynamic RoPE, whose frequencies change with the length of the text, so "
                "old keys cannot be turned back; use the format without keybias=removed and rope=removed"
            )
        found.append(_matched(model, layer, sources[layer], cached[layer], rotary, tables))
    return found


def key_transforms(model: PreTrainedModel, kv_format: KVFormat) -> dict[int, KeyTransform]:
    """Transforms by layer for a format that needs them; empty for one that does not.

    Raises ModelError where the model has no key bias or no rotary embedding to remove, where a norm follows the
    projection so that its bias is no term of the key, or where keys are made in an unknown way.
    """
    if not kv_format.transforms_keys:
        return {}
    layers = layer_keys(model)
    removes_bias, removes_rope = kv_format.key_bias == "removed", kv_format.key_rope == "removed"
    name = type(model).__name__
    if removes_bias:
        normed = [layer for layer, keys in enumerate(layers) if not keys.is_projection]
        if normed:
            raise ModelError(
                f"{name} normalises keys after their projection ({layers[normed[0]].source} in layer {normed[0]}), so "
                "no bias is a term of them; leave keybias=removed out"
            )
        if all(keys.bias is None for keys in layers):
            raise ModelError(f"{name} has no bias in its key projections; leave keybias=removed out")
    if removes_rope and all(keys.rotation is None for keys in layers):
        raise ModelError(f"{name} has no rotary position embedding; leave rope=removed out")
    return {
        layer: RotaryKeyTransform(keys.rotation, keys.bias if removes_bias else None, removes_rope=removes_rope)
        for layer, keys in enumerate(layers)
    }


def _attention_modules(model: PreTrainedModel, geometry: CacheGeometry) -> list[nn.Module]:
    """The attention module of each layer: the one that knows its layer number and projects keys."""
    found: dict[int, nn.Module] = {}
    for module in model.get_decoder().modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and any(hasattr(module, name) for name in ("k_proj", "qkv_proj")):
            found.setdefault(index, module)
    missing = sorted(set(range(geometry.num_layers)) - set(found))
    if missing:
        raise ModelError(
            f"{type(model).__name__}: layer {missing[0]} has no key projection named k_proj or qkv_proj, so its keys "
            "before position embedding are unknown; use the format without keybias=removed and rope=removed"
        )
    return [found[layer] for layer in range(geometry.num_layers)]


def _probe(
    model: PreTrainedModel, geometry: CacheGeometry, attention: list[nn.Module]
) -> tuple[list[list[_Source]], list[Tensor]]:
    """What each layer's modules made of a few tokens, and the keys that came to the cache."""
    outputs: dict[tuple[int, str], Tensor] = {}

    def record(_module: nn.Module, _inputs: Any, output: Any, *, place: tuple[int, str]) -> None:
        if isinstance(output, Tensor):
            outputs[place] = output.detach()

    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    token_ids = (torch.arange(_PROBE_TOKENS, device=model.device) * 7919 + 1) % vocabulary
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    with ExitStack() as hooks:
        for layer, module in enumerate(attention):
            for name in ("k_proj", "qkv_proj", *_NORMS):
                if isinstance(part := getattr(module, name, None), nn.Module):
                    handle = part.register_forward_hook(partial(record, place=(layer, name)))
                    hooks.callback(handle.remove)
        model.get_decoder()(token_ids[None], cache=cache, use_cache=True)
    sources = [
        list(_sources(outputs, module, layer, geometry.layers[layer], geometry.query_heads))
        for layer, module in enumerate(attention)
    ]
    return sources, [cast(Tensor, cast(Any, layer).keys) for layer in cache.layers]


def _sources(
    outputs: dict[tuple[int, str], Tensor], attention: nn.Module, layer: int, shape: LayerGeometry, query_heads: int
) -> Iterator[_Source]:
    heads, dim = shape.kv_heads, shape.head_dim
    for name, begin in (("k_proj", 0), ("qkv_proj", query_heads * dim)):
        output = outputs.get((layer, name))
        if output is None or output.shape[-1] < begin + heads * dim:
            continue
        bias = getattr(getattr(attention, name), "bias", None)
        channels = slice(begin, begin + heads * dim)
        yield _Source(
            name,
            output[..., channels].unflatten(-1, (heads, dim)).transpose(1, 2),
            # A copy: what was encoded without this bias must get the same one back, whatever becomes of the weights.
            None if bias is None else bias.detach()[channels].clone().unflatten(0, (heads, dim)),
            is_projection=True,
        )
    for name in _NORMS:
        output = outputs.get((layer, name))
        if output is None:
            continue
        if output.shape[-1] == heads * dim and output.ndim == 3:
            output = output.unflatten(-1, (heads, dim))
        if output.ndim == 4 and output.shape[1] == _PROBE_TOKENS:
            output = output.transpose(1, 2)
        yield _Source(name, output, None, is_projection=False)


def _rotary_module(model: PreTrainedModel, attention: nn.Module, layer: int) -> _RotaryModule | None:
    """The rotary module that serves a layer, or None if the model has none."""
    module = getattr(attention, "rotary_emb", None) or getattr(model.get_decoder(), "rotary_emb", None)
    if module is None:
        return None
    if not isinstance(getattr(module, "rope_type", None), dict):
        return _RotaryModule(module, None)
    layer_type = model.config.get_text_config(decoder=True).layer_types[layer]
    return _RotaryModule(module, layer_type) if layer_type in module.rope_type else None


def _matched(
    model: PreTrainedModel,
    layer: int,
    sources: list[_Source],
    cached: Tensor,
    rotary: _RotaryModule | None,
    tables: dict[tuple[int, str | None, str], PositionTables],
) -> LayerKeys:
    """The one way that leads from a source to the cached keys."""
    tolerance = max(_TOLERANCE, 8 * torch.finfo(cached.dtype).eps)
    expected = cached.double()
    best = float("inf")
    for source in sources:
        if source.keys.shape != cached.shape:
            continue
        for rotation in (*_rotations(rotary, source.keys, tables), None):
            keys = source.keys.double()
            found = keys if rotation is None else rotation.apply(keys, 0)
            difference = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
            if difference <= tolerance:
                return LayerKeys(rotation, source.bias, source.name, source.is_projection)
            best = min(best, difference)
    raise ModelError(
        f"{type(model).__name__}: the keys of layer {layer} are not its key projection under a known rotary embedding "
        f"(they differ by {best:.3g} of the largest key, at most {tolerance:.1g} is allowed); use the format without "
        "keybias=removed and rope=removed"
    )


def _rotations(
    rotary: _RotaryModule | None, like: Tensor, tables: dict[tuple[int, str | None, str], PositionTables]
) -> Iterator[Rotation]:
    """Every way to read a rotary module's output, each for both pairings of channels."""
    if rotary is None:
        return
    channels = rotary.cosines(like, 0, 1)[0].shape[-1]
    # Modules repeat each pair's cosine for both of its channels, one half after the other or side by side, or do not.
    readings = {
        "twice": (channels // 2, slice(0, channels // 2)),
        "side by side": (channels // 2, slice(0, None, 2)),
        "once": (channels, slice(None)),
    }
    for reading, (pairs, chosen) in readings.items():
        if 2 * pairs > like.shape[-1]:
            continue
        key = (id(rotary.module), rotary.layer_type, reading)
        if key not in tables:
            tables[key] = PositionTables(partial(_read, rotary, like.new_zeros(1, 1, 1), chosen), rotary.max_positions)
        for pairing in get_args(Pairing):
            yield Rotation(tables[key], pairing)


def _read(rotary: _RotaryModule, like: Tensor, chosen: slice, first: int, count: int) -> tuple[Tensor, Tensor]:
    cos, sin = rotary.cosines(like, first, count)
    return cos[:, chosen].clone(), sin[:, chosen].clone()
