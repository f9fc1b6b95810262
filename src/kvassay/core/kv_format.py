"""KVFormat: the identity of a compressed KV cache, with its canonical digest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvassay.core.digest import sha256_json
from kvassay.core.geometry import LayerGeometry
from kvassay.core.spec import FloatDtype, QuantSpec, exact_spec
from kvassay.errors import FormatError

Side = Literal["keys", "values"]
SIDES: tuple[Side, Side] = ("keys", "values")

LAYOUT_VERSION = 1
"""Raised whenever the same spec would decode the same stored bytes to other numbers."""


class Override(BaseModel):
    """Other specs for some layers, or for some KV heads of them. None leaves a side as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, ...] = Field(min_length=1)
    heads: tuple[int, ...] | None = None
    """KV heads; None for all."""
    keys: QuantSpec | None = None
    values: QuantSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Override:
        _require_rising("layers", self.layers)
        if self.heads is not None:
            _require_rising("heads", self.heads)
        if self.keys is None and self.values is None:
            raise FormatError("an override without keys and values changes nothing; name at least one side")
        if self.keys is not None and self.values is not None and self.keys != self.values:
            raise FormatError("an override has one spec, for keys, values or both; write two overrides for two specs")
        return self


class KVFormat(BaseModel):
    """Keys and values specs plus everything else that changes a decoded number.

    `sinks` first tokens and `recent` last tokens of every sequence stay in `exact_dtype`, as do all tokens of
    `skip_layers`. With per-channel scales a token waits in `exact_dtype` until its block of tokens is complete, so
    the full-precision tail holds between `recent` and `recent + tokens_per_block - 1` tokens. Of several `overrides`
    that meet in one head, the last holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: QuantSpec
    values: QuantSpec
    sinks: int = Field(default=0, ge=0)
    recent: int = Field(default=0, ge=0)
    skip_layers: tuple[int, ...] = ()
    overrides: tuple[Override, ...] = ()
    exact_dtype: FloatDtype = "float16"
    key_bias: Literal["kept", "removed"] = "kept"
    """`removed`: codes hold k − RoPE_p(b), where b is the bias of the key projection and p the position. Since
    k = RoPE_p(Wx) + RoPE_p(b), the second term follows from weights and position and is added again on decode."""
    key_rope: Literal["applied", "removed"] = "applied"
    """`removed`: codes hold keys before the rotary position embedding, which is applied again on decode."""
    layout_version: int = LAYOUT_VERSION

    @model_validator(mode="after")
    def _check(self) -> KVFormat:
        _require_rising("skip_layers", self.skip_layers)
        if (
            self.transforms_keys
            and self.keys.is_exact
            and all(o.keys is None or o.keys.is_exact for o in self.overrides)
        ):
            raise FormatError(
                "keybias=removed and rope=removed change how keys are quantized, and this format stores keys as plain "
                "floats; leave them out, or quantize keys"
            )
        targets = [(one.layers, one.heads, one.keys is None, one.values is None) for one in self.overrides]
        if twice := next((target for index, target in enumerate(targets) if target in targets[:index]), None):
            raise FormatError(
                f"layers {list(twice[0])} are overridden twice by the same kind of override, of which only the last "
                "would hold; remove one"
            )
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> KVFormat:
        """As pydantic's; digest and name are those of the copy."""
        copied = super().model_copy(update=update, deep=deep)
        for derived in ("digest", "name"):
            vars(copied).pop(derived, None)
        return copied

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal in two processes, different when any one field differs.

        Fields at their defaults are left out, so that a field added later moves no digest.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True)
        return sha256_json({**fields, "layout_version": self.layout_version})

    @cached_property
    def name(self) -> str:
        """Short string that `parse_format` reads back to an equal format."""
        from kvassay.core.format_names import format_name  # the grammar imports KVFormat

        return format_name(self)

    @property
    def is_exact(self) -> bool:
        """True where no value is ever quantized: the format is a plain float cache."""
        return all(spec.is_exact for spec in self.specs)

    @property
    def transforms_keys(self) -> bool:
        """True where codes of keys are made from other numbers than the keys, which needs the model's weights."""
        return self.key_bias == "removed" or self.key_rope == "removed"

    @property
    def specs(self) -> tuple[QuantSpec, ...]:
        """Every spec that some layer may use, keys first."""
        found = [self.keys, self.values]
        for override in self.overrides:
            found += [spec for spec in (override.keys, override.values) if spec is not None]
        return tuple(found)

    @property
    def largest_layer(self) -> int | None:
        """The largest layer number that the format names."""
        named = [*self.skip_layers, *(layer for override in self.overrides for layer in override.layers)]
        return max(named, default=None)

    def skips(self, layer: int) -> bool:
        return layer in self.skip_layers

    def specs_at(self, layer: int, head: int | None = None) -> tuple[QuantSpec, QuantSpec]:
        """Of keys and values of one KV head, with the format's exceptions; of one that no override names for None."""
        if self.skips(layer):
            return exact_spec(self.exact_dtype), exact_spec(self.exact_dtype)
        keys, values = self.keys, self.values
        for override in self.overrides:
            if layer in override.layers and (override.heads is None or head in override.heads):
                keys, values = override.keys or keys, override.values or values
        return keys, values

    def __str__(self) -> str:
        return self.name


def committed_tokens(tokens: int, sinks: int, recent: int, block: int) -> int:
    """Tokens after the sinks whose whole block lies outside the recent window once `tokens` are held."""
    return max(0, tokens - sinks - recent) // block * block


class SidePlan(NamedTuple):
    """What one side of one layer stores, with the format's layer exceptions applied."""

    side: Side
    spec: QuantSpec
    sinks: int
    recent: int
    sliding_window: int | None

    def committed_tokens(self, tokens: int) -> int:
        """Tokens, counted from the end of the sinks, that are stored in `spec` once `tokens` were appended.

        A block is committed when its last token is at least `recent` tokens older than the newest one. The count
        depends on `tokens` alone, so what is stored depends on the tokens and the format, never on how they came.
        """
        return committed_tokens(tokens, self.sinks, self.recent, self.spec.tokens_per_block)

    def dropped_tokens(self, tokens: int) -> int:
        """Committed tokens that a sliding window has left behind and that are no longer stored (whole blocks)."""
        if self.sliding_window is None:
            return 0
        block = self.spec.tokens_per_block
        behind = max(0, tokens - self.sliding_window) // block * block
        return min(behind, self.committed_tokens(tokens))


class HeadGroup(NamedTuple):
    """KV heads of one layer that are stored alike, and how."""

    members: range | tuple[int, ...]
    """Rising. A range where they are all heads: a shape may name millions of them before anyone refuses it."""
    keys: SidePlan
    values: SidePlan

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(self.members)

    @property
    def num_heads(self) -> int:
        """As `len(heads)`, without listing them."""
        return len(self.members)


def head_groups(kv_format: KVFormat, layer: int, geometry: LayerGeometry) -> tuple[HeadGroup, ...]:
    """Plans of one layer, heads with equal plans together: one group unless an override names heads.

    A skipped layer stores `exact_dtype`. A sliding layer keeps no sinks: its first tokens leave the window anyway.
    """
    every = range(geometry.kv_heads)
    overrides = () if kv_format.skips(layer) else [one for one in kv_format.overrides if layer in one.layers]
    named = {head for override in overrides for head in override.heads or () if head in every}
    # Heads that no override names share the plans of `None`.
    plans = {head: _plans(kv_format, layer, head, geometry) for head in (None, *sorted(named))}
    if all(each == plans[None] for each in plans.values()):
        return (HeadGroup(every, *plans[None]),)
    groups: dict[tuple[SidePlan, SidePlan], list[int]] = {}
    for head in sorted(named):
        groups.setdefault(plans[head], []).append(head)
    if rest := [head for head in every if head not in named]:
        groups[plans[None]] = sorted([*groups.get(plans[None], ()), *rest])
    found = (HeadGroup(tuple(heads), *each) for each, heads in groups.items())
    return tuple(sorted(found, key=lambda group: group.members[0]))


def _plans(kv_format: KVFormat, layer: int, head: int | None, geometry: LayerGeometry) -> tuple[SidePlan, SidePlan]:
    """Of one head; of one that no override names where `head` is None."""
    keys, values = kv_format.specs_at(layer, head)
    return _side_plan(kv_format, "keys", keys, geometry), _side_plan(kv_format, "values", values, geometry)


def _side_plan(kv_format: KVFormat, side: Side, spec: QuantSpec, geometry: LayerGeometry) -> SidePlan:
    # A float side needs no window: its values are exact wherever they stand.
    keeps = not spec.is_exact
    sinks = kv_format.sinks if keeps and geometry.sliding_window is None else 0
    return SidePlan(side, spec, sinks, kv_format.recent if keeps else 0, geometry.sliding_window)


def _require_rising(what: str, numbers: tuple[int, ...]) -> None:
    if list(numbers) != sorted(set(numbers)) or any(number < 0 for number in numbers):
        raise FormatError(f"{what} must be distinct numbers from 0 in rising order, found {list(numbers)}")
