"""The string form of one side's QuantSpec.

    CODEC       = WORD [":" GRANULARITY] ["/" MODIFIER]*       words come from the method table
    GRANULARITY = tensor | head | channel | token | token-head | groupN | channelN | blockTxC | tileT
    MODIFIER    = sym | asym | scale=f32|f16|bf16|e8m0|e4m3 | had[=BLOCK] | seed=N | mean | OPTION=VALUE

`channel` alone is one static scale a channel, `channelN` one for N consecutive tokens. `token/groupN` is the long form
of `groupN`. `blockTxC` is T tokens by C channels. `had` rotates the channels (Hadamard, block BLOCK or the largest
power of two that divides the head size), `seed` draws its signs, `mean` subtracts a static mean of each channel.
"""

from __future__ import annotations

import difflib
import re
from contextlib import suppress

from kvassay.core.methods import Method, Option, Word, method_of, words
from kvassay.core.spec import STATIC, Granularity, OptionValue, QuantSpec, Rotation, ScaleDtype
from kvassay.errors import FormatError

_SCALES: dict[str, ScaleDtype] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "e8m0": "float8_e8m0fnu",
    "e4m3": "float8_e4m3fn",
}
_SCALE_NAMES = {long: short for short, long in _SCALES.items()}
_PLAIN = {
    "tensor": Granularity.TENSOR,
    "head": Granularity.HEAD,
    "channel": Granularity.STATIC_CHANNEL,
    "token": Granularity.TOKEN,
    "token-head": Granularity.TOKEN_HEAD,
}
_PLAIN_NAMES = {granularity: text for text, granularity in _PLAIN.items()}
_GRANULARITY_HELP = "tensor, head, channel, token, token-head, groupN, channelN, blockTxC or tileT"


def parse_side(text: str) -> QuantSpec:
    """Read one side; raises FormatError naming what was found and what would do."""
    head, *modifiers = text.split("/")
    codec, colon, granularity_text = head.partition(":")
    if granularity_text == "token" and modifiers and modifiers[0].startswith("group"):
        granularity_text = modifiers.pop(0)
    known = words()
    if codec not in known:
        raise FormatError(unknown("codec", codec, list(known), "kvassay formats --methods"))
    method, word = known[codec]
    granularity, group_size, block_tokens = _granularity(text, word, granularity_text if colon else None)
    fields = _modified(text, method, word, granularity, modifiers)
    return QuantSpec(
        method=method.name,
        num_bits=word.num_bits,
        granularity=granularity,
        group_size=group_size,
        block_tokens=block_tokens,
        **fields,  # pyright: ignore[reportArgumentType]  (pydantic checks them)
    )


def side_name(spec: QuantSpec) -> str:
    """The shortest text that `parse_side` reads back to an equal spec."""
    method = method_of(spec)
    for word in method.words:
        text = _name_with(spec, method, word)
        # A word may lack what the spec has; then another of the method's words writes it.
        with suppress(FormatError):
            if text is not None and parse_side(text) == spec:
                return text
    raise FormatError(f"no codec of method {spec.method!r} writes this spec: {spec!r}")


def _granularity(text: str, word: Word, found: str | None) -> tuple[Granularity, int | None, int | None]:
    if word.fixed is not None or not word.granularities:
        if found is not None:
            raise FormatError(f"codec {word.text} is fixed and takes no granularity, found {text!r}")
        granularity, size = word.fixed or (Granularity.NONE, None)
        return (granularity, None, size) if granularity is Granularity.TILE else (granularity, size, None)
    if found is None:
        if word.bare:
            return Granularity.NONE, None, None
        raise FormatError(f"codec {word.text} needs a granularity, for example {word.text}:{_example(word)}")
    granularity, group_size, block_tokens = _parse_granularity(found)
    if granularity not in word.granularities:
        raise FormatError(
            f"codec {word.text} does not take granularity {found!r}; it takes "
            f"{', '.join(_granularity_help(each) for each in word.granularities)}"
        )
    return granularity, group_size, block_tokens


def _parse_granularity(text: str) -> tuple[Granularity, int | None, int | None]:
    if text in _PLAIN:
        return _PLAIN[text], None, None
    if match := re.fullmatch(r"(group|channel)([0-9]{1,6})", text):
        return Granularity(match[1]), int(match[2]), None
    if match := re.fullmatch(r"block([0-9]{1,6})x([0-9]{1,6})", text):
        return Granularity.BLOCK, int(match[2]), int(match[1])
    if match := re.fullmatch(r"tile([0-9]{1,6})", text):
        return Granularity.TILE, None, int(match[1])
    raise FormatError(f"granularity {text!r} is unknown; use {_GRANULARITY_HELP}")


def _modified(
    text: str, method: Method, word: Word, granularity: Granularity, modifiers: list[str]
) -> dict[str, object]:
    """The fields of the spec that modifiers choose."""
    symmetric, scale_dtype, mean = word.symmetric, _default_scale(word, granularity), False
    block: int | None = None
    seed: int | None = None
    options = _default_options(method, word)
    given: dict[str, str] = {}
    for modifier in modifiers:
        key, equals, value = modifier.partition("=")
        chosen = "sym or asym" if modifier in ("sym", "asym") else key
        if chosen in given:
            raise FormatError(f"{text!r} says {chosen} twice: {given[chosen]!r} and {modifier!r}; remove one")
        given[chosen] = modifier
        if modifier in ("sym", "asym") and word.may_flip:
            symmetric = modifier == "sym"
        elif key == "scale" and value in _SCALES and granularity is not Granularity.NONE:
            scale_dtype = _SCALES[value]
            if scale_dtype not in word.scale_dtypes:
                allowed = ", ".join(_SCALE_NAMES[dtype] for dtype in word.scale_dtypes)
                raise FormatError(f"codec {word.text} takes scales of {allowed}, found {value!r} in {text!r}")
        elif key == "had" and method.may_rotate:
            block = whole_number("had", value) if equals else 0
        elif key == "seed" and method.may_rotate:
            seed = whole_number("seed", value)
        elif modifier == "mean" and method.may_rotate:
            mean = True
        elif key in options:
            options[key] = _option_value(method, key, value)
        else:
            taken = [name for name, takes in _takes(method, word, granularity).items() if takes]
            raise FormatError(unknown(f"modifier of {word.text}", modifier, [*taken, *options]))
    if seed is not None and block is None:
        raise FormatError(f"seed draws the signs of a rotation, and {text!r} has none; add had")
    return {
        "symmetric": symmetric,
        "code_dtype": word.code_dtypes[0 if symmetric else 1],
        "scale_dtype": scale_dtype,
        "rotation": None if block is None else Rotation(block=block, seed=seed or 0),
        "mean": mean,
        "options": tuple(sorted(options.items())),
    }


def _takes(method: Method, word: Word, granularity: Granularity) -> dict[str, bool]:
    """Which modifiers of the grammar this codec takes."""
    scales = granularity is not Granularity.NONE
    return {
        "sym": word.may_flip,
        "asym": word.may_flip,
        **{f"scale={_SCALE_NAMES[dtype]}": scales for dtype in word.scale_dtypes},
        "had": method.may_rotate,
        "seed=1": method.may_rotate,
        "mean": method.may_rotate,
    }


def _default_options(method: Method, word: Word) -> dict[str, OptionValue]:
    return {**{option.name: option.default for option in method.options}, **dict(word.default_options)}


def _option_value(method: Method, name: str, text: str) -> OptionValue:
    option: Option = next(option for option in method.options if option.name == name)
    try:
        value = type(option.default)(text)
    except ValueError:
        value = None
    if value is None or not option.check(value):
        raise FormatError(f"{method.name}: {name}={text!r} is not one of its values: {option.help}")
    return value


def _default_scale(word: Word, granularity: Granularity) -> ScaleDtype | None:
    """float32 where one scale serves a whole row (its cost is small), float16 for groups."""
    if granularity is Granularity.NONE:
        return None
    if word.scale_dtype is not None:
        return word.scale_dtype
    wide = granularity in STATIC or granularity in (Granularity.TOKEN, Granularity.TOKEN_HEAD)
    return "float32" if wide else "float16"


def _name_with(spec: QuantSpec, method: Method, word: Word) -> str | None:
    """The spec written with this word; None where the word has other bits."""
    if word.num_bits != spec.num_bits:
        return None
    text = word.text
    if word.fixed is None and spec.granularity is not Granularity.NONE:
        text += f":{_granularity_name(spec)}"
    if word.may_flip and spec.symmetric != word.symmetric:
        text += "/sym" if spec.symmetric else "/asym"
    if spec.scale_dtype is not None and spec.scale_dtype != _default_scale(word, spec.granularity):
        text += f"/scale={_SCALE_NAMES[spec.scale_dtype]}"
    if spec.rotation is not None:
        text += f"/had={spec.rotation.block}" if spec.rotation.block else "/had"
        text += f"/seed={spec.rotation.seed}" if spec.rotation.seed else ""
    if spec.mean:
        text += "/mean"
    defaults = _default_options(method, word)
    for name, value in spec.options:
        if value != defaults.get(name):
            text += f"/{name}={value}"
    return text


def _granularity_name(spec: QuantSpec) -> str:
    match spec.granularity:
        case Granularity.GROUP | Granularity.CHANNEL:
            return f"{spec.granularity.value}{spec.group_size}"
        case Granularity.BLOCK:
            return f"block{spec.block_tokens}x{spec.group_size}"
        case Granularity.TILE:
            return f"tile{spec.block_tokens}"
        case _:
            return _PLAIN_NAMES[spec.granularity]


def _granularity_help(granularity: Granularity) -> str:
    sizes = {Granularity.GROUP: "groupN", Granularity.CHANNEL: "channelN", Granularity.BLOCK: "blockTxC"}
    return _PLAIN_NAMES.get(granularity) or sizes.get(granularity, "tileT")


def _example(word: Word) -> str:
    for granularity, text in ((Granularity.TOKEN_HEAD, "token-head"), (Granularity.GROUP, "group32")):
        if granularity in word.granularities:
            return text
    return _granularity_help(word.granularities[0])


def whole_number(key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise FormatError(f"{key}={text!r} is not a whole number from 0 to 999999999")
    return int(text)


def unknown(what: str, found: str, choices: list[str], lister: str | None = None) -> str:
    """An error text with the nearest choice, and all of them, or the command that shows them if they are too many."""
    close = difflib.get_close_matches(found, [choice for choice in choices if choice != found], n=1)
    nearest = f"; did you mean {close[0]!r}?" if close else ""
    if lister is not None:
        return f"{what} {found!r} is unknown{f'{nearest} See' if close else '; see'} {lister}"
    return f"{what} {found!r} is unknown{f'{nearest} Known' if close else '; known'}: {', '.join(choices) or 'none'}"
