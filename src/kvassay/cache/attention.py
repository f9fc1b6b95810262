"""How models read a QuantizedCache: two entries of transformers' registry of attention functions.

`sdpa` (what most models use) passes everything on to transformers' own function, except packed views of a
QuantizedCache, which it reads tile by tile. `kvassay` does the same and also serves what sdpa refuses, soft-capped
scores and learned sinks: `model.set_attn_implementation("kvassay")` for Gemma 2 and GPT-OSS. Models that use neither
get decoded tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvassay.cache.attention_path import AttentionPath, ChosenPath
from kvassay.cache.fused_attention import call_obstacle, fused_attention, is_long, serves_step, step_attention
from kvassay.cache.graph_capture import BREAK_REASON
from kvassay.cache.own_precision import own_precision
from kvassay.cache.packed_view import PackedView
from kvassay.cache.tiled_attention import Scoring, tiled_attention
from kvassay.cache.traced import attend, attend_by, promise
from kvassay.errors import CacheStateError, KernelError

if TYPE_CHECKING:
    from kvassay.cache.quantized_layer import QuantizedLayer

NAME = "kvassay"
READS_VIEWS = (NAME, "sdpa")
"""Attention implementations that know packed views."""


def chosen_path(config: Any, layer: QuantizedLayer) -> ChosenPath:
    """The path of a layer in a model with this config. Raises where the one asked for is not there: CacheStateError,
    and KernelError where kernels cannot read what the layer stores."""
    choice = layer.attention
    decoder = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    name = getattr(decoder, "_attn_implementation", None)
    if choice == "decoded":
        return ChosenPath(AttentionPath.DECODED, "attention='decoded' was asked for")
    if name in READS_VIEWS and AttentionInterface().get(name) in (packed_sdpa, packed_attention):
        reads = f"the model's attention is {name!r}, which reads pages"
        if choice == "tiled":
            return ChosenPath(AttentionPath.TILED, f"{reads}, and attention='tiled' was asked for")
        if (obstacle := layer.kernel_obstacle) is None:
            return ChosenPath(AttentionPath.FUSED, reads)
        if choice == "fused":
            raise KernelError(f"attention='fused' was asked for, and kernels cannot read this layer: {obstacle}")
        return ChosenPath(AttentionPath.TILED, f"{reads}; kernels do not: {obstacle}")
    way_out = f"model.set_attn_implementation({NAME!r}) reads pages"
    if choice in ("tiled", "fused"):
        raise CacheStateError(f"attention={choice!r} was asked for and the model's attention is {name!r}; {way_out}")
    return ChosenPath(AttentionPath.DECODED, f"the model's attention is {name!r}; {way_out}")


def register() -> None:
    """Enter both functions; importing `kvassay.cache` does it."""
    AttentionInterface.register("sdpa", packed_sdpa)
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def packed_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' sdpa; packed views that it would decode are read in place."""
    if torch.compiler.is_compiling() and promise.made(key):
        return _attend_in_graph(query, key, value, attention_mask, **kwargs), None
    if _is_packed(key, value) and kwargs.get("position_bias") is None and not kwargs.get("dropout"):
        return _attend(module, query, key, value, attention_mask, **kwargs)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """As `packed_sdpa`, with soft cap and learned sinks for plain tensors too."""
    if torch.compiler.is_compiling() and promise.made(key):
        return _attend_in_graph(query, key, value, attention_mask, **kwargs), None
    if _is_packed(key, value):
        return _attend(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("softcap") is None and kwargs.get("s_aux") is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return _plain(module, query, key, value, attention_mask, **kwargs)


def _is_packed(key: Tensor, value: Tensor) -> bool:
    return (
        isinstance(key, PackedView)
        and isinstance(value, PackedView)
        and key.seen() is not None
        and key.seen() is value.seen()
    )


def _scoring(query: Tensor, kwargs: dict[str, Any]) -> Scoring:
    scaling = kwargs.get("scaling")
    return Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, kwargs.get("softcap"), kwargs.get("s_aux"))


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    if torch.compiler.is_compiling():
        return _attend_between_graphs(module, query, key, value, mask, **kwargs)
    return _attend_views(query, key, value, mask, **kwargs), None


def _attend_views(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
    assert isinstance(key, PackedView), "the caller checks"
    seen = key.seen()
    assert seen is not None, "the caller checks"
    query, scoring, layer = query.detach(), _scoring(query, kwargs), seen.layer
    if mask is None and layer.attention != "tiled" and serves_step(query, seen):
        layer.path = AttentionPath.FUSED
        if not torch.is_autocast_enabled(query.device.type):
            return step_attention(query, seen, scoring)  # entering a context takes a good part of a step's bookkeeping
        with own_precision(query.device):
            return step_attention(query, seen, scoring)
    obstacle = "" if layer.attention == "tiled" or is_long(query, seen) else call_obstacle(query, seen, mask)
    if obstacle and layer.attention == "fused":
        raise KernelError(f"attention='fused' was asked for, and kernels cannot serve this call: {obstacle}")
    layer.path = AttentionPath.FUSED if obstacle is None else AttentionPath.TILED
    attend = fused_attention if obstacle is None else tiled_attention
    with own_precision(query.device):
        out = attend(query, seen, mask, scoring)
    return out.transpose(1, 2).contiguous()


attend_by(_attend_views)


def _attend_in_graph(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
    promise.keys = None
    scoring = _scoring(query, kwargs)
    return attend(
        query, key, value, mask, scoring.sinks, scoring.scaling, scoring.softcap, promise.number, promise.layer
    )


@torch.compiler.disable(reason=BREAK_REASON)
def _attend_between_graphs(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """Apart from `_attend`, since what `disable` adds to a call is a good part of a step outside of torch.compile."""
    return _attend(*args, **kwargs)


def _plain(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Plain tensors with soft cap or sinks, over all keys at once. Gradients pass."""
    scoring = _scoring(query, kwargs)
    ratio = query.shape[1] // key.shape[1]
    grouped = query.unflatten(1, (key.shape[1], ratio))
    scores = (grouped @ key[:, :, None].transpose(-1, -2)) * scoring.scaling
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if mask is None and query.shape[2] > 1:
        ahead = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = ahead.tril(key.shape[2] - query.shape[2])[None, None]
    if mask is not None:
        part = mask[:, :, None] if mask.shape[1] == 1 else mask.unflatten(1, (key.shape[1], ratio))
        scores = scores.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else scores + part
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores).view(1, key.shape[1], ratio, 1, 1).expand(*scores.shape[:4], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores.float() if scores.dtype != torch.float64 else scores, dim=-1)
    weights = weights[..., : key.shape[2]].to(query.dtype)
    weights = nn.functional.dropout(weights, kwargs.get("dropout", 0.0), module.training)
    out = (weights @ value[:, :, None]).flatten(1, 2)
    return out.transpose(1, 2).contiguous(), None
