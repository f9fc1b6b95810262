"""The string form of a KVFormat.

    FORMAT   = PRESET | SIDE ("," SIDE)          then any of  "," OPTION
    SIDE     = ("k=" | "v=" | "kv=") CODEC       see `core.side_names`
    OPTION   = sinks=N | recent=N | skip=0+1+29 | exact=f16|bf16|f32
             | keybias=kept|removed | rope=applied|removed | OVERRIDE
    OVERRIDE = "@" LAYERS ["h" HEADS] [".k" | ".v"] "=" (CODEC | PRESET)

`kivi-4,recent=32` is a preset with one option changed; `int4-g64,@0+29=int8-token-head,@3h1.k=f16` stores layers 0 and
29, and the keys of head 1 of layer 3, otherwise. `format_name` writes the shortest name that reads back to the same
format.
"""

from __future__ import annotations

import re

from kvassay.core.kv_format import KVFormat, Override
from kvassay.core.methods import words
from kvassay.core.presets import PRESET_TEXT, PRESETS, Preset
from kvassay.core.side_names import parse_side, side_name, unknown, whole_number
from kvassay.core.spec import FloatDtype, QuantSpec
from kvassay.errors import FormatError

__all__ = ["PRESETS", "Preset", "format_name", "parse_format"]

_FLOATS: dict[str, FloatDtype] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_FLOAT_NAMES = {long: short for short, long in _FLOATS.items()}
_OPTION_FIELDS = {"skip": "skip_layers", "exact": "exact_dtype", "keybias": "key_bias", "rope": "key_rope"}
_KEY_STEPS = {"keybias": ("kept", "removed"), "rope": ("applied", "removed")}


def parse_format(text: str) -> KVFormat:
    """Read a format string; raises FormatError naming what was found and what would do."""
    parts = [part.strip() for part in text.strip().split(",")]
    _refuse_repetition(text, parts)
    if parts[0] in PRESET_TEXT:
        parts = PRESET_TEXT[parts[0]].split(",") + parts[1:]
    elif not re.match(r"(k|v|kv)=", parts[0]):
        raise FormatError(_no_format(parts[0]))
    sides: dict[str, QuantSpec] = {}
    options: dict[str, object] = {}
    overrides: list[Override] = []
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise FormatError(f"format {text!r}: {part!r} is not of the form name=value")
        if key in ("k", "v", "kv"):
            for side in key:
                sides[side] = parse_side(value)
        elif key.startswith("@"):
            overrides += _parse_override(key, value)
        else:
            options[_OPTION_FIELDS.get(key, key)] = _parse_option(key, value)
    if missing := [side for side in "kv" if side not in sides]:
        raise FormatError(f"format {text!r} says nothing of {' and '.join(missing)}; write k=...,v=... or kv=...")
    return KVFormat(
        keys=sides["k"],
        values=sides["v"],
        overrides=tuple(overrides),
        **options,  # pyright: ignore[reportArgumentType]  (pydantic checks them)
    )


def _no_format(text: str) -> str:
    """Why `text` begins no format."""
    if re.split("[:/]", text)[0] in words():
        return f"format {text!r} is the codec of one side; write kv={text}, or k=...,v=..."
    return unknown("format", text, list(PRESET_TEXT), "kvassay formats") + ", or write k=...,v=..."


def _refuse_repetition(text: str, parts: list[str]) -> None:
    """A part that is silently overridden by a later one is a format that nobody meant."""
    given: dict[str, str] = {}
    for part in parts:
        key, equals, _ = part.partition("=")
        for name in ("k", "v") if key == "kv" else (key,):
            if equals and name in given:
                raise FormatError(f"format {text!r} says {name} twice: {given[name]!r} and {part!r}; remove one")
            given[name] = part


def format_name(kv_format: KVFormat) -> str:
    """The shortest name of a format: a preset, a preset with options, or the full form."""
    candidates = [
        preset.name + _options(kv_format, parse_format(preset.name))
        for preset in PRESETS
        if _same_sides(kv_format, parse_format(preset.name))
    ]
    if candidates:
        return min(candidates, key=len)
    keys, values = side_name(kv_format.keys), side_name(kv_format.values)
    sides = f"kv={keys}" if keys == values else f"k={keys},v={values}"
    return sides + _options(kv_format, KVFormat(keys=kv_format.keys, values=kv_format.values))


def _parse_option(key: str, value: str) -> object:
    if key in ("sinks", "recent"):
        return whole_number(key, value)
    if key == "skip":
        return () if value == "none" else _numbers(key, value)
    if key == "exact":
        if value not in _FLOATS:
            raise FormatError(unknown("exact dtype", value, list(_FLOATS)))
        return _FLOATS[value]
    if key in _KEY_STEPS:
        if value not in _KEY_STEPS[key]:
            raise FormatError(unknown(f"value of {key}", value, list(_KEY_STEPS[key])))
        return value
    known = ["k", "v", "kv", "sinks", "recent", "skip", "exact", *_KEY_STEPS, "@LAYERS"]
    raise FormatError(unknown("format option", key, known))


def _parse_override(key: str, value: str) -> list[Override]:
    match = re.fullmatch(r"@([0-9+]+)(?:h([0-9+]+))?(?:\.([kv]))?", key)
    if match is None:
        raise FormatError(
            f"override {key!r} is not @LAYERS, @LAYERS.k or @LAYERShHEADS.v; write for example @0+29.k=f16"
        )
    layers = _numbers(key, match[1])
    heads = None if match[2] is None else _numbers(key, match[2])
    if value in PRESET_TEXT:
        preset = parse_format(value)
        keys, values = preset.keys, preset.values
    else:
        keys = values = parse_side(value)
    if match[3] is None and keys == values:
        return [Override(layers=layers, heads=heads, keys=keys, values=values)]
    sides = {
        "k": Override(layers=layers, heads=heads, keys=keys),
        "v": Override(layers=layers, heads=heads, values=values),
    }
    return [override for side, override in sides.items() if match[3] in (None, side)]


def _override_text(override: Override) -> str:
    where = "@" + "+".join(map(str, override.layers))
    if override.heads is not None:
        where += "h" + "+".join(map(str, override.heads))
    spec = override.keys or override.values
    assert spec is not None, "Override names a side"
    side = "" if override.keys == override.values else ".k" if override.keys else ".v"
    return f",{where}{side}={side_name(spec)}"


def _numbers(key: str, text: str) -> tuple[int, ...]:
    return tuple(whole_number(key, number) for number in text.split("+"))


def _same_sides(left: KVFormat, right: KVFormat) -> bool:
    return left.keys == right.keys and left.values == right.values and left.layout_version == right.layout_version


def _options(kv_format: KVFormat, base: KVFormat) -> str:
    """The options of `kv_format` that differ from `base`, in the order of the grammar."""
    text = ""
    if kv_format.sinks != base.sinks:
        text += f",sinks={kv_format.sinks}"
    if kv_format.recent != base.recent:
        text += f",recent={kv_format.recent}"
    if kv_format.skip_layers != base.skip_layers:
        text += f",skip={'+'.join(map(str, kv_format.skip_layers)) or 'none'}"
    if kv_format.exact_dtype != base.exact_dtype:
        text += f",exact={_FLOAT_NAMES[kv_format.exact_dtype]}"
    if kv_format.key_bias != base.key_bias:
        text += f",keybias={kv_format.key_bias}"
    if kv_format.key_rope != base.key_rope:
        text += f",rope={kv_format.key_rope}"
    return text + "".join(_override_text(override) for override in kv_format.overrides)
