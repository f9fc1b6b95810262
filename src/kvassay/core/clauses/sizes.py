"""Bounds on bytes, which are counted and not sampled."""

from __future__ import annotations

from kvassay.core.clauses.fields import Positive, Section
from kvassay.core.geometry import Owner


class ByteBounds(Section):
    persistent_per_token_max: Positive | None = None
    peak_transient_max: Positive | None = None
    count: tuple[Owner, ...] = tuple(Owner)
    """Owners that count towards the bound; by default every byte does."""

    @property
    def bounds(self) -> dict[str, float]:
        """Those that are given, by clause."""
        named = {
            "persistent_per_token_max": self.persistent_per_token_max,
            "peak_transient_max": self.peak_transient_max,
        }
        return {name: bound for name, bound in named.items() if bound is not None}
