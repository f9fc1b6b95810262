"""Put a QuantizedCache wherever transformers, or a test of it, makes a DynamicCache from a config.

Every substitution there is:

1. `DynamicCache` in `transformers.cache_utils`, and in every module that imported it before, becomes
   `SubstitutedCache`. Called with a config it returns a `kvassay.cache.QuantizedCache`, itself unchanged, for that
   config. That includes the caches that `generate` makes for an assistant model. `isinstance(x, DynamicCache)` is true
   of a QuantizedCache.
2. `DynamicCache()` without a config, `DynamicCache(data)` and `DynamicCache(config, offloading=True)` stay what they
   were, since a QuantizedCache needs to know the heads and has an `Offload` of its own; so does a config that kvassay
   refuses. Each is counted with its reason, and a test in which no QuantizedCache was made counts as not run.
3. The list of layer classes that the cropping tests of `test_cache_utils.py` go through becomes a full and a sliding
   layer of a QuantizedCache.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any

from transformers import LlamaConfig, cache_utils
from transformers.cache_utils import DynamicCache

from kvassay.cache import QuantizedCache
from kvassay.cache.attention_path import AttentionChoice
from kvassay.core.format_names import parse_format
from kvassay.errors import KvassayError

made: Counter[str] = Counter()
"""How many caches were made since the last `made.clear()`: under "QuantizedCache", or under why not one."""

_kv_format = ""


def _attention() -> AttentionChoice:
    """Bit equality needs the plain run's own attention; reading tile by tile adds up in another order."""
    return "decoded" if parse_format(_kv_format).is_exact else "auto"


class _Substitute(type):
    """A class whose call makes another class's object."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not SubstitutedCache:
            return super().__call__(*args, **kwargs)
        config = kwargs.get("config", args[1] if len(args) > 1 else None)
        if config is None or args[:1] not in ((), (None,)) or kwargs.get("ddp_cache_data") is not None:
            return _plain("made without a config" if config is None else "made from tensors", args, kwargs)
        if kwargs.get("offloading"):
            return _plain("made with offloading", args, kwargs)
        try:
            cache = QuantizedCache(config.get_text_config(decoder=True), _kv_format, attention=_attention())
        except KvassayError as refusal:
            return _plain(f"kvassay refuses the config: {refusal}", args, kwargs)
        made["QuantizedCache"] += 1
        return cache

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is SubstitutedCache:
            return isinstance(instance, DynamicCache | QuantizedCache)
        return super().__instancecheck__(instance)


class SubstitutedCache(DynamicCache, metaclass=_Substitute):
    """Stands where DynamicCache stood."""


def _plain(why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DynamicCache:
    made[why] += 1
    return DynamicCache(*args, **kwargs)


def install(kv_format: str) -> None:
    """Substitute from now on, in modules that are loaded already as in those to come."""
    global _kv_format
    _kv_format = kv_format
    for name, module in list(sys.modules.items()):
        if name.startswith(("transformers", "tests")) and vars(module).get("DynamicCache") is DynamicCache:
            module.__dict__["DynamicCache"] = SubstitutedCache
    cache_utils.DynamicCache = SubstitutedCache  # pyright: ignore[reportAttributeAccessIssue]


def layer_classes() -> list[Any]:
    """What the cropping tests call with `sliding_window=...`: makers of a full and of a sliding layer of 32 heads."""

    def maker(sliding: bool) -> Any:
        def make(sliding_window: int | None = None) -> Any:
            config = LlamaConfig(num_hidden_layers=1, num_attention_heads=32, hidden_size=32 * 32)
            if sliding:
                config.layer_types = ["sliding_attention"]
                config.sliding_window = sliding_window
            made["QuantizedCache"] += 1
            layer = QuantizedCache(config, _kv_format, attention=_attention()).layers[0]
            if sliding:
                layer.sliding_window = sliding_window  # pyright: ignore[reportAttributeAccessIssue]
            return layer

        return make

    return [maker(False), maker(True)]


def substitute_layer_classes(module: ModuleType) -> None:
    """Substitution 3, in a loaded test module."""
    if hasattr(module, "ALL_DYNAMIC_LAYERS"):
        module.__dict__["ALL_DYNAMIC_LAYERS"] = layer_classes()
