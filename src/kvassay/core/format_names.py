"""The string form of a KVFormat.

    FORMAT    = PRESET | SIDE ("," SIDE)          then any of  "," OPTION
    SIDE      = ("k=" | "v=" | "kv=") CODEC [":" GRANULARITY] ["/" MODIFIER]*
    CODEC     = f32 | f16 | bf16 | int8 | int4 | int2 | fp8-e4m3 | q8_0 | q4_0
    GRANULARITY = tensor | token | token-head | groupN | channelN
    MODIFIER  = sym | asym | scale=f32 | scale=f16
    OPTION    = sinks=N | recent=N | skip=0+1+29 | exact=f16|bf16|f32

`kivi-4,recent=32` is a preset with one option changed. `format_name` writes the shortest name that reads back to
the same format.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from kvassay.core.kv_format import KVFormat
from kvassay.core.spec import FloatDtype, Granularity, QuantSpec, ScaleDtype, exact_spec
from kvassay.errors import FormatError

_FLOATS: dict[str, FloatDtype] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_FLOAT_NAMES = {long: short for short, long in _FLOATS.items()}
_CODECS = ("f32", "f16", "bf16", "int8", "int4", "int2", "fp8-e4m3", "q8_0", "q4_0")
_GRANULARITIES = "tensor, token, token-head, groupN or channelN (N = group size)"


class Preset(NamedTuple):
    """A named format and where it comes from."""

    name: str
    text: str
    source: str


PRESETS: tuple[Preset, ...] = (
    Preset("f32", "kv=f32,exact=f32", "plain float32 cache: the numerical reference on a CPU"),
    Preset("f16", "kv=f16", "plain float16 cache: the usual denominator of savings"),
    Preset("bf16", "kv=bf16,exact=bf16", "plain bfloat16 cache"),
    Preset("int8-tensor", "kv=int8:tensor", "one static scale a side; the 004 experiment's tensor quantizer"),
    Preset("int8-token", "kv=int8:token", "one float32 scale a token over all KV heads"),
    Preset(
        "int8-token-head",
        "kv=int8:token-head",
        "one float32 scale a token and head; vLLM's int8_per_token_head",
    ),
    Preset("fp8-e4m3", "kv=fp8-e4m3", "float8 e4m3fn cast with scale 1, as engines do without checkpoint scales"),
    Preset(
        "fp8-e4m3-token-head",
        "kv=fp8-e4m3:token-head",
        "float8 e4m3fn, one float32 absmax scale a token and head",
    ),
    Preset("int4-g32", "kv=int4:group32", "asymmetric 4 bit, groups of 32 channels, float16 scale and minimum"),
    Preset("int4-g64", "kv=int4:group64", "asymmetric 4 bit, groups of 64 channels, float16 scale and minimum"),
    Preset("int2-g32", "kv=int2:group32", "asymmetric 2 bit, groups of 32 channels, float16 scale and minimum"),
    Preset("q8_0", "kv=q8_0", "ggml block: 32 signed 8-bit codes, float16 scale (llama.cpp)"),
    Preset("q4_0", "kv=q4_0", "ggml block: 32 4-bit codes, float16 scale (llama.cpp)"),
    Preset(
        "kivi-4",
        "k=int4:channel32,v=int4:group32,recent=128",
        "KIVI (Liu et al. 2024, arXiv:2402.02750): K per channel, V per token, residual 128",
    ),
    Preset(
        "kivi-2",
        "k=int2:channel32,v=int2:group32,recent=128",
        "KIVI (Liu et al. 2024, arXiv:2402.02750): K per channel, V per token, residual 128",
    ),
)
_PRESET_TEXT = {preset.name: preset.text for preset in PRESETS}


def parse_format(text: str) -> KVFormat:
    """Read a format string; raises FormatError naming what was found and what would do."""
    parts = [part.strip() for part in text.strip().split(",")]
    if parts[0] in _PRESET_TEXT:
        parts = _PRESET_TEXT[parts[0]].split(",") + parts[1:]
    elif not re.match(r"(k|v|kv)=", parts[0]):
        raise FormatError(_unknown("format", parts[0], [*_PRESET_TEXT, "k=...,v=..."]))
    sides: dict[str, QuantSpec] = {}
    options: dict[str, object] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise FormatError(f"format {text!r}: {part!r} is not of the form name=value")
        if key in ("k", "v", "kv"):
            for side in key:
                sides[side] = _parse_side(value)
        else:
            options[_OPTION_FIELDS.get(key, key)] = _parse_option(key, value)
    if missing := [side for side in "kv" if side not in sides]:
        raise FormatError(f"format {text!r} says nothing of {' and '.join(missing)}; write k=...,v=... or kv=...")
    return KVFormat(keys=sides["k"], values=sides["v"], **options)  # pyright: ignore[reportArgumentType]


def format_name(kv_format: KVFormat) -> str:
    """The shortest name of a format: a preset, a preset with options, or the full form."""
    candidates = [
        preset.name + _options(kv_format, parse_format(preset.name))
        for preset in PRESETS
        if _same_sides(kv_format, parse_format(preset.name))
    ]
    if candidates:
        return min(candidates, key=len)
    keys, values = _side_name(kv_format.keys), _side_name(kv_format.values)
    sides = f"kv={keys}" if keys == values else f"k={keys},v={values}"
    return sides + _options(kv_format, KVFormat(keys=kv_format.keys, values=kv_format.values))


_OPTION_FIELDS = {"skip": "skip_layers", "exact": "exact_dtype"}


def _parse_option(key: str, value: str) -> object:
    if key in ("sinks", "recent"):
        return _whole_number(key, value)
    if key == "skip":
        return () if value == "none" else tuple(_whole_number(key, number) for number in value.split("+"))
    if key == "exact":
        if value not in _FLOATS:
            raise FormatError(_unknown("exact dtype", value, list(_FLOATS)))
        return _FLOATS[value]
    raise FormatError(_unknown("format option", key, ["k", "v", "kv", "sinks", "recent", "skip", "exact"]))


def _whole_number(key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise FormatError(f"{key}={text!r} is not a whole number from 0 to 999999999")
    return int(text)


def _parse_side(text: str) -> QuantSpec:
    head, *modifiers = text.split("/")
    codec, colon, granularity_text = head.partition(":")
    if granularity_text == "token" and modifiers and modifiers[0].startswith("group"):
        granularity_text = modifiers.pop(0)  # "token/group32" is the long form of "group32"
    if codec not in _CODECS:
        raise FormatError(_unknown("codec", codec, list(_CODECS)))
    if codec in _FLOATS or codec in ("q8_0", "q4_0"):
        if colon or modifiers:
            raise FormatError(f"codec {codec} is fixed and takes no granularity or modifier, found {text!r}")
        return _fixed_spec(codec)
    if codec == "fp8-e4m3" and not colon:
        if modifiers:
            raise FormatError(f"fp8-e4m3 without a granularity has scale 1 and takes no modifier, found {text!r}")
        return QuantSpec(method="float8", num_bits=8, code_dtype="float8_e4m3fn")
    granularity, group_size = _parse_granularity(granularity_text)
    symmetric, scale_dtype = _parse_modifiers(codec, granularity, modifiers)
    return QuantSpec(
        method="float8" if codec == "fp8-e4m3" else "int",
        num_bits=8 if codec == "fp8-e4m3" else int(codec.removeprefix("int")),
        granularity=granularity,
        group_size=group_size,
        symmetric=symmetric,
        code_dtype=_code_dtype(codec, symmetric),
        scale_dtype=scale_dtype,
    )


def _fixed_spec(codec: str) -> QuantSpec:
    if codec in _FLOATS:
        return exact_spec(_FLOATS[codec])
    return QuantSpec(
        method=codec,
        num_bits=8 if codec == "q8_0" else 4,
        granularity=Granularity.GROUP,
        group_size=32,
        code_dtype=_code_dtype(codec, symmetric=True),
        scale_dtype="float16",
    )


def _code_dtype(codec: str, symmetric: bool) -> str:
    """Signed bytes where a code fills one, else packed unsigned codes."""
    if codec == "fp8-e4m3":
        return "float8_e4m3fn"
    return "int8" if codec == "q8_0" or (codec == "int8" and symmetric) else "uint8"


def _parse_granularity(text: str) -> tuple[Granularity, int | None]:
    match = re.fullmatch(r"(group|channel)([0-9]{1,6})", text)
    if match:
        return Granularity(match[1]), int(match[2])
    if text in ("tensor", "token", "token-head"):
        return Granularity(text), None
    raise FormatError(f"granularity {text!r} is unknown; use {_GRANULARITIES}")


def _parse_modifiers(codec: str, granularity: Granularity, modifiers: list[str]) -> tuple[bool, ScaleDtype]:
    symmetric = codec in ("int8", "fp8-e4m3")
    scale_dtype: ScaleDtype = _default_scale_dtype(granularity)
    for modifier in modifiers:
        if modifier in ("sym", "asym") and codec != "fp8-e4m3":
            symmetric = modifier == "sym"
        elif modifier in ("scale=f32", "scale=f16"):
            scale_dtype = "float32" if modifier == "scale=f32" else "float16"
        else:
            raise FormatError(_unknown(f"modifier of {codec}", modifier, ["sym", "asym", "scale=f32", "scale=f16"]))
    return symmetric, scale_dtype


def _default_scale_dtype(granularity: Granularity) -> ScaleDtype:
    """float32 where one scale serves a whole row (its cost is small), float16 for groups."""
    return "float16" if granularity in (Granularity.GROUP, Granularity.CHANNEL) else "float32"


def _side_name(spec: QuantSpec) -> str:
    if spec.method == "float":
        return _FLOAT_NAMES[spec.code_dtype]
    if spec.method not in ("int", "float8"):
        return spec.method
    codec = f"int{spec.num_bits}" if spec.method == "int" else "fp8-e4m3"
    if spec.granularity is Granularity.NONE:
        return codec
    name = f"{codec}:{spec.granularity.value}{spec.group_size or ''}"
    if spec.symmetric != (codec in ("int8", "fp8-e4m3")):
        name += "/sym" if spec.symmetric else "/asym"
    if spec.scale_dtype != _default_scale_dtype(spec.granularity):
        name += "/scale=f32" if spec.scale_dtype == "float32" else "/scale=f16"
    return name


def _same_sides(left: KVFormat, right: KVFormat) -> bool:
    return left.keys == right.keys and left.values == right.values and left.layout_version == right.layout_version


def _options(kv_format: KVFormat, base: KVFormat) -> str:
    """The options of `kv_format` that differ from `base`, in the order sinks, recent, skip, exact."""
    text = ""
    if kv_format.sinks != base.sinks:
        text += f",sinks={kv_format.sinks}"
    if kv_format.recent != base.recent:
        text += f",recent={kv_format.recent}"
    if kv_format.skip_layers != base.skip_layers:
        text += f",skip={'+'.join(map(str, kv_format.skip_layers)) or 'none'}"
    if kv_format.exact_dtype != base.exact_dtype:
        text += f",exact={_FLOAT_NAMES[kv_format.exact_dtype]}"
    return text


def _unknown(what: str, found: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(found, choices, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return (
        f"{what} {found!r} is unknown{hint} Known: {', '.join(choices)}"
        if hint
        else f"{what} {found!r} is unknown; known: {', '.join(choices)}"
    )
