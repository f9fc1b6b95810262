"""How much of a decode step attention takes: what an attention module does outside its four projections.

That is rotary embedding, the cache's update (encoding, and decoding where a cache does that) and attention itself, the
same span for every cache. Hooks around the modules cost about a microsecond each.
"""

from __future__ import annotations

import time
from typing import Any

from torch import nn


class AttentionTime:
    """Times one forward of a model; `share` is of the whole forward."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._began: list[float] = []
        self._step = self._attention = self._projections = 0.0

    def __enter__(self) -> AttentionTime:
        self._watch(self._model, "_step")
        for name, module in self._model.named_modules():
            if name.endswith(".self_attn"):
                self._watch(module, "_attention")
                for _, child in module.named_children():
                    if isinstance(child, nn.Linear):
                        self._watch(child, "_projections")
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def share(self) -> float:
        assert self._attention > 0, "the model has attention modules"
        return (self._attention - self._projections) / self._step

    def _watch(self, module: nn.Module, field: str) -> None:
        def begin(*_: object) -> None:
            self._began.append(time.perf_counter())

        def end(*_: object) -> None:
            setattr(self, field, getattr(self, field) + time.perf_counter() - self._began.pop())

        self._hooks += [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
