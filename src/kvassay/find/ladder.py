"""A ladder: one family of codecs at several widths, and the format that an allocation over it makes.

A ladder is a format text with `{bits}` where the width stands, for example `kv=int{bits}:group32` or
`k=int{bits}:channel32,v=int{bits}:group32,recent=32`. Windows, sinks and other options of the text hold for every
allocation. Width 16 is a plain float of the format's `exact` type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kvassay.core.format_names import parse_format
from kvassay.core.geometry import CacheGeometry, LayerGeometry
from kvassay.core.kv_format import SIDES, KVFormat, Override, Side
from kvassay.core.ledger import predict_ledger
from kvassay.core.spec import QuantSpec, exact_spec
from kvassay.errors import FormatError, SearchError

By = Literal["layer", "head"]

EXACT_WIDTH = 16


class Unit(NamedTuple):
    """What gets bits of its own: one side of a layer, or of one KV head of it."""

    layer: int
    side: Side
    head: int | None
    """None for all KV heads together."""

    def __str__(self) -> str:
        head = "" if self.head is None else f" head {self.head}"
        return f"{self.side} of layer {self.layer}{head}"


class Ladder(NamedTuple):
    """A family at rising widths."""

    template: str
    widths: tuple[int, ...]
    formats: tuple[KVFormat, ...]
    """Uniform, one a width."""

    @property
    def base(self) -> KVFormat:
        return self.formats[0]

    def spec(self, width: int, side: Side) -> QuantSpec:
        kv_format = self.formats[self.widths.index(width)]
        return kv_format.keys if side == "keys" else kv_format.values


def parse_ladder(template: str, widths: Sequence[int]) -> Ladder:
    """Raises SearchError for a text without `{bits}`, and FormatError for a width that the family does not have."""
    if "{bits}" not in template:
        raise SearchError(f"ladder {template!r} has no {{bits}} in it; write for example 'kv=int{{bits}}:group32'")
    rising = tuple(sorted(set(widths)))
    if len(rising) < 2:
        raise SearchError(f"a ladder needs two widths or more to choose from, found {list(widths)}")
    formats = []
    for width in rising:
        if width == EXACT_WIDTH:
            formats.append(_exact(formats[0] if formats else parse_format(template.replace("{bits}", str(rising[0])))))
            continue
        try:
            parsed = parse_format(template.replace("{bits}", str(width)))
        except FormatError as error:
            raise FormatError(f"ladder {template!r} at width {width}: {error}") from error
        if parsed.overrides or parsed.skip_layers:
            raise SearchError(f"ladder {template!r} names layers; an allocation chooses what each layer gets")
        formats.append(parsed)
    return Ladder(template, rising, tuple(formats))


def units_of(geometry: CacheGeometry, by: By) -> tuple[Unit, ...]:
    """Every unit of a model, layer by layer, keys first."""
    return tuple(
        Unit(index, side, head)
        for index, layer in enumerate(geometry.layers)
        for side in SIDES
        for head in (range(layer.kv_heads) if by == "head" else (None,))
    )


def isolated_format(ladder: Ladder, unit: Unit, width: int) -> KVFormat:
    """One unit at `width`, with the ladder's window and sinks; everything else is float32, which rounds nothing."""
    plain = exact_spec("float32")
    spec = ladder.spec(width, unit.side)
    heads = None if unit.head is None else (unit.head,)
    override = Override(layers=(unit.layer,), heads=heads, **{unit.side: spec})
    return ladder.base.model_copy(update={"keys": plain, "values": plain, "overrides": (override,)})


def unit_nbytes(ladder: Ladder, geometry: CacheGeometry, unit: Unit, width: int, tokens: int) -> int:
    """Persistent bytes of a unit at `tokens` tokens, counted by the ledger of a model that has this unit alone.

    Layers and sides add up exactly. Heads that are stored apart take at least what they take together (alignment and
    page records), so a sum over heads is never below the real ledger.
    """
    layer = geometry.layers[unit.layer]
    heads = layer.kv_heads if unit.head is None else 1
    alone = CacheGeometry(
        model_type=geometry.model_type,
        query_heads=heads,
        layers=(LayerGeometry(**{**layer.model_dump(), "kv_heads": heads}),),
    )
    kv_format = ladder.formats[ladder.widths.index(width)]
    ledger = predict_ledger(alone, kv_format, tokens)
    return sum((ledger.keys_nbytes if unit.side == "keys" else ledger.values_nbytes).values())


def allocated_format(ladder: Ladder, geometry: CacheGeometry, widths: dict[Unit, int]) -> KVFormat:
    """The format of an allocation, written with as few overrides as its most common widths allow."""
    common = {side: _most_common([w for unit, w in widths.items() if unit.side == side]) for side in SIDES}
    found: dict[tuple[Side, tuple[int, ...] | None, int], list[int]] = {}
    for index in range(geometry.num_layers):
        for side in SIDES:
            own = [(unit.head, width) for unit, width in widths.items() if unit.layer == index and unit.side == side]
            found_widths = {width for _, width in own}
            for width in sorted(found_widths - {common[side]}):
                heads = tuple(sorted(head for head, each in own if head is not None and each == width))
                named = None if len(found_widths) == 1 else heads
                found.setdefault((side, named, width), []).append(index)
    overrides = tuple(
        Override(layers=tuple(layers), heads=heads, **{side: ladder.spec(width, side)})
        for (side, heads, width), layers in found.items()
    )
    update = {
        "keys": ladder.spec(common["keys"], "keys"),
        "values": ladder.spec(common["values"], "values"),
        "overrides": overrides,
    }
    if all(ladder.spec(widths[unit], "keys").is_exact for unit in widths if unit.side == "keys"):
        update |= {"key_bias": "kept", "key_rope": "applied"}  # there are no codes of keys to make otherwise
    return KVFormat.model_validate(ladder.base.model_copy(update=update).model_dump())


def _exact(like: KVFormat) -> KVFormat:
    plain = exact_spec(like.exact_dtype)
    return like.model_copy(update={"keys": plain, "values": plain, "key_bias": "kept", "key_rope": "applied"})


def _most_common(widths: Sequence[int]) -> int:
    """The wider of equally common ones."""
    return max(Counter(widths).items(), key=lambda item: (item[1], item[0]))[0]
