"""The numeric level: captured keys, values and queries, and bounds on what attention makes of a format's errors.

A document's figure is its worst cell over layers and KV heads, so that a mild mean cannot hide a broken head (R93); a
clause bounds the mean of that figure over documents.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from kvassay.core.clauses.fields import Count, Positive, Section
from kvassay.core.slices import ALL

SUBSTITUTED = ("both", "keys", "values")
"""Sides that are replaced by what a cache of the format hands to each query."""
LAYER_THIRDS = ("early", "middle", "late")

FIGURE_WORDS: dict[str, str] = {
    "output_relative": "relative output error",
    "output_max_abs": "largest output error",
    "score_max_abs": "largest score error",
    "weight_max_abs": "largest softmax-weight error",
    "reconstruction_relative": "relative array error",
}
"""Clauses of the level, and what a reason calls their figure."""
FIGURE_UNITS: dict[str, str] = {
    "output_relative": "share",
    "output_max_abs": "activation units",
    "score_max_abs": "logits",
    "weight_max_abs": "weight",
    "reconstruction_relative": "share",
}
_OF_KEYS_ALONE = ("score_max_abs", "weight_max_abs")
"""Values take no part in scores and weights, so a bound on these with values replaced would always hold."""

SLICES = ("substituted=keys", "substituted=values", *(f"layers={third}" for third in LAYER_THIRDS))


def slices_of(name: str) -> tuple[str, ...]:
    """Slices in which a clause says something."""
    return tuple(label for label in SLICES if name not in _OF_KEYS_ALONE or label != "substituted=values")


def in_slice(label: str, substituted: str, layer: int, layers: int) -> bool:
    """Whether a cell of a model with that many layers belongs to a slice; other labels than sides replace both."""
    kind, _, name = label.partition("=")
    if kind == "substituted":
        return substituted == name
    return substituted == "both" and (label == ALL or LAYER_THIRDS[3 * layer // layers] == name)


class NumericBound(Section):
    """Upper bound on the mean, over documents, of the worst cell's error with keys and values replaced."""

    max: Positive
    slices: tuple[str, ...] = ()
    """Slices that must be MET by themselves: `substituted=keys`, `substituted=values`, `layers=early`, ..."""
    min_docs: Count = Field(default=20, ge=20)

    @property
    def limit(self) -> float:
        return self.max


def _documents(bounds: dict[str, Any]) -> int:
    """As many as are planned where nobody says: of a mean, or of a description."""
    return 24 if any(bounds.get(name) is not None for name in FIGURE_WORDS) else 1


class Numeric(Section):
    """`documents` texts of the contract are captured, and the last `queries` decode positions of each are measured.

    Where `documents` is left out it is 24 with a bound and 1 without. Without a bound the level describes and decides
    nothing, and is run beside scored text only.
    """

    queries: Count = Field(default=64, ge=1)
    output_relative: NumericBound | None = None
    output_max_abs: NumericBound | None = None
    score_max_abs: NumericBound | None = None
    weight_max_abs: NumericBound | None = None
    reconstruction_relative: NumericBound | None = None
    documents: Count = Field(default_factory=_documents, ge=0)
    """After the bounds, on which its default depends."""

    @field_validator(*FIGURE_WORDS)
    @classmethod
    def _known_slices(cls, bound: NumericBound | None, info: Any) -> NumericBound | None:
        known = slices_of(info.field_name)
        if bound is not None and (unknown := [label for label in bound.slices if label not in known]):
            raise ValueError(f"found the slice {unknown[0]!r}; expected one of {list(known)}")
        return bound

    @model_validator(mode="after")
    def _enough_documents(self) -> Numeric:
        for name, bound in self.bounds.items():
            if self.documents < bound.min_docs:
                raise ValueError(f"documents is {self.documents}, {name} needs at least {bound.min_docs}")
        return self

    @property
    def bounds(self) -> dict[str, NumericBound]:
        """Those that are given, by clause."""
        named = {name: getattr(self, name) for name in FIGURE_WORDS}
        return {name: bound for name, bound in named.items() if bound is not None}
