"""Names of the ways in which attention reads a cache."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from kvassay.cache.arguments import require_choice
from kvassay.errors import CacheStateError

AttentionChoice = Literal["auto", "fused", "tiled", "decoded"]

KernelChoice = Literal["auto", "exact", "reference"]
"""What multiplies: `exact`, compiled kernels; `reference`, torch on decoded tiles; `auto`, the first that serves."""

ATTENTION_OF_KERNEL: dict[KernelChoice, AttentionChoice] = {"auto": "auto", "exact": "fused", "reference": "tiled"}
"""What `attention` a choice of kernel is."""


def attention_choice(attention: AttentionChoice, kernel: KernelChoice) -> AttentionChoice:
    """The way of reading that `attention` and `kernel` ask for together. Raises CacheStateError for others than their
    words, and where they contradict each other."""
    require_choice(attention, AttentionChoice, "attention")
    require_choice(kernel, KernelChoice, "kernel")
    meant = ATTENTION_OF_KERNEL[kernel]
    if "auto" not in (attention, meant) and attention != meant:
        raise CacheStateError(
            f"kernel={kernel!r} reads as attention={meant!r} does, and attention={attention!r} was asked for too; give "
            "one of them"
        )
    return meant if attention == "auto" else attention


class AttentionPath(StrEnum):
    """How attention reads stored tokens."""

    FUSED = "fused (compiled)"
    """From the codes in their pages, by compiled kernels; no page is decoded."""
    TILED = "tiled (torch)"
    """Page by page; working memory is one tile."""
    DECODED = "decoded"
    """Each layer is decoded as a whole, which takes the room of a full-precision layer."""
    NONE = "none yet"


class ChosenPath(NamedTuple):
    path: AttentionPath
    reason: str


class LayerPath(NamedTuple):
    """One layer's row of `QuantizedCache.explain`."""

    layer: int
    last: AttentionPath
    """What read it last."""
    next: AttentionPath
    """What will read it next."""
    reason: str
