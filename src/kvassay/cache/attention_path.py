"""Names of the ways in which attention reads a cache."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

AttentionChoice = Literal["auto", "fused", "tiled", "decoded"]


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
