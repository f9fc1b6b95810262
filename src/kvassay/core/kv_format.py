"""KVFormat: the identity of a compressed KV cache, with its canonical digest."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvassay.core.digest import sha256_json
from kvassay.core.geometry import LayerGeometry
from kvassay.core.spec import FloatDtype, QuantSpec, exact_spec
from kvassay.errors import FormatError

LAYOUT_VERSION = 1
"""Raised whenever the same spec would decode the same stored bytes to other numbers."""


class KVFormat(BaseModel):
    """Keys and values specs plus everything else that changes a decoded number.

    `sinks` first tokens and `recent` last tokens of every sequence stay in `exact_dtype`, as do all tokens of
    `skip_layers`. With per-channel scales a token waits in `exact_dtype` until its block of tokens is complete, so
    the full-precision tail holds between `recent` and `recent + tokens_per_block - 1` tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: QuantSpec
    values: QuantSpec
    sinks: int = Field(default=0, ge=0)
    recent: int = Field(default=0, ge=0)
    skip_layers: tuple[int, ...] = ()
    exact_dtype: FloatDtype = "float16"
    layout_version: int = LAYOUT_VERSION

    @model_validator(mode="after")
    def _check(self) -> KVFormat:
        if list(self.skip_layers) != sorted(set(self.skip_layers)) or any(i < 0 for i in self.skip_layers):
            raise FormatError(
                f"skip_layers must be distinct layer numbers from 0 in rising order, found {list(self.skip_layers)}"
            )
        return self

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal in two processes, different when any one field differs."""
        return sha256_json(self.model_dump(mode="json"))

    @cached_property
    def name(self) -> str:
        """Short string that `parse_format` reads back to an equal format."""
        from kvassay.core.format_names import format_name  # the grammar imports KVFormat

        return format_name(self)

    @property
    def is_exact(self) -> bool:
        """True where no value is ever quantized: the format is a plain float cache."""
        return self.keys.is_exact and self.values.is_exact

    def skips(self, layer: int) -> bool:
        return layer in self.skip_layers

    def __str__(self) -> str:
        return self.name


class SidePlan(NamedTuple):
    """What one side of one layer stores, with the format's layer exceptions applied."""

    spec: QuantSpec
    sinks: int
    recent: int
    sliding_window: int | None

    def committed_tokens(self, tokens: int) -> int:
        """Tokens, counted from the end of the sinks, that are stored in `spec` once `tokens` were appended.

        A block is committed when its last token is at least `recent` tokens older than the newest one. The count
        depends on `tokens` alone, so what is stored depends on the tokens and the format, never on how they came.
        """
        block = self.spec.tokens_per_block
        return max(0, tokens - self.sinks - self.recent) // block * block

    def dropped_tokens(self, tokens: int) -> int:
        """Committed tokens that a sliding window has left behind and that are no longer stored (whole blocks)."""
        if self.sliding_window is None:
            return 0
        block = self.spec.tokens_per_block
        behind = max(0, tokens - self.sliding_window) // block * block
        return min(behind, self.committed_tokens(tokens))


def side_plans(kv_format: KVFormat, layer: int, geometry: LayerGeometry) -> tuple[SidePlan, SidePlan]:
    """Plans of keys and values of one layer.

    A skipped layer stores `exact_dtype`. A sliding layer keeps no sinks: its first tokens leave the window anyway.
    """
    if kv_format.skips(layer):
        spec = exact_spec(kv_format.exact_dtype)
        plan = SidePlan(spec, 0, 0, geometry.sliding_window)
        return plan, plan
    sinks = 0 if geometry.sliding_window is not None else kv_format.sinks
    keys, values = (
        # A float side needs no window: its values are exact wherever they stand.
        SidePlan(
            spec,
            0 if spec.is_exact else sinks,
            0 if spec.is_exact else kv_format.recent,
            geometry.sliding_window,
        )
        for spec in (kv_format.keys, kv_format.values)
    )
    return keys, values
