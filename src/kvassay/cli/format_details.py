"""`kvassay formats show`: one format explained, byte by byte, beside its neighbours."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

from cyclopts import Parameter

from kvassay.cli.output import print_json, table_lines
from kvassay.cli.whole_numbers import whole_number
from kvassay.core.format_names import PRESETS, Preset, parse_format
from kvassay.core.kv_format import KVFormat
from kvassay.core.layout import rotation_block, static_streams, stored_bits_per_value, streams
from kvassay.core.methods import method_of, methods
from kvassay.core.presets import Conformance
from kvassay.core.side_names import parse_side, side_name
from kvassay.core.spec import Granularity, QuantSpec
from kvassay.errors import GeometryError, KvassayError

_SHARES = {
    Granularity.NONE: "none: the element is the value",
    Granularity.TENSOR: "one static scale for the side of a layer",
    Granularity.HEAD: "one static scale a KV head",
    Granularity.STATIC_CHANNEL: "one static scale for each channel of each KV head",
    Granularity.TOKEN: "one scale a token, shared by all KV heads",
    Granularity.TOKEN_HEAD: "one scale for each token of each KV head",
    Granularity.GROUP: "one scale for {group} adjacent channels of a token",
    Granularity.CHANNEL: "one scale for a channel over {group} consecutive tokens",
    Granularity.BLOCK: "one scale for {group} adjacent channels over {tokens} consecutive tokens",
    Granularity.TILE: "scales of the method's own over a tile of {tokens} tokens",
}
_SPARK = "▁▂▃▄▅▆▇█"
_NEIGHBOURS_EACH_WAY = 3
HeadDim = Annotated[int, whole_number(1, 4096)]
KvHeads = Annotated[int, whole_number(1, 4096)]
NEEDS_TORCH = "SQNR on Gaussian data needs the torch extra: pip install 'kvassay[torch]'"


def show(
    name: str,
    /,
    *,
    head_dim: HeadDim = 128,
    kv_heads: KvHeads = 8,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Explain one format: methods and sources, the bytes of a block, real bits, error, and its neighbours.

    Parameters
    ----------
    name
        A preset, or any format text, for example k=int8:token-head,v=int4:group64.
    head_dim
        Head size of keys and values.
    kv_heads
        KV heads of a layer, which share the scales of a format with one scale a token.
    json
        Print one JSON document.
    """
    kv_format = parse_format(name)
    value = _details(kv_format, head_dim, kv_heads)
    if json:
        print_json(value)
    else:
        _print_details(value)
    return 0


def side_details(spec: QuantSpec, head_dim: int, kv_heads: int) -> dict[str, Any]:
    """What is known of one side without a tensor; bits and arrays are null where it cannot serve `head_dim`.

    Stored bits are those of all `kv_heads`; arrays and bytes of a block are those of one.
    """
    method = method_of(spec)
    share = _SHARES[spec.granularity].format(group=spec.group_size, tokens=spec.block_tokens)
    details: dict[str, Any] = {
        "codec": side_name(spec),
        "method": method.name,
        "family": method.family.value,
        "summary": method.summary,
        "method_source": method.source,
        "error_bound": method.error_bound or None,
        "granularity": spec.granularity.value,
        "scale_shared_by": share,
        "scale_dtype": spec.scale_dtype,
        "options": dict(spec.options),
        "rotation": None if spec.rotation is None else spec.rotation.model_dump(mode="json"),
        "mean": spec.mean,
        "needs_calibration": spec.needs_calibration,
        "nominal_bits": spec.num_bits,
        "stored_bits": None,
        "tokens_per_block": spec.tokens_per_block,
        "block": None,
        "block_nbytes": None,
        "static": None,
        "refusal": None,
    }
    try:
        arrays, offset = [], 0
        for stream, of_two in zip(streams(spec, 1, head_dim), streams(spec, 2, head_dim), strict=True):
            arrays.append(
                {
                    "name": stream.name,
                    "owner": stream.owner.value,
                    "offset": offset,
                    "nbytes": stream.block_nbytes,
                    "dtype": stream.dtype,
                    "shape": list(stream.block_shape),
                    "shared_by_heads": of_two.heads == 1,
                }
            )
            offset += stream.block_nbytes
        static = [
            {"name": each.name, "owner": each.owner.value, "nbytes": each.block_nbytes, "dtype": each.dtype,
             "shape": [each.heads, *each.block_shape]}
            for each in static_streams(spec, 1, head_dim)
        ]  # fmt: skip
        stored_bits = stored_bits_per_value(spec, kv_heads, head_dim)
        details.update(stored_bits=stored_bits, block=arrays, block_nbytes=offset, static=static)
        if spec.rotation is not None:
            details["rotation"]["block_at_this_head_dim"] = rotation_block(spec, head_dim)
    except GeometryError as error:
        details["refusal"] = str(error)
    return details


def engine_rows(preset: Preset) -> list[dict[str, Any]]:
    """Engines' names of a preset, and how it is known that codes are equal."""
    return [
        {
            "engine": each.engine,
            "name": each.name,
            "codes_proven_equal": each.conformance is Conformance.PROVEN,
            "conformance": each.conformance.name,
            "conformance_text": each.conformance.value,
            "note": each.note,
        }
        for each in preset.engines
    ]


def _details(kv_format: KVFormat, head_dim: int, kv_heads: int) -> dict[str, Any]:
    base, _, options = kv_format.name.partition(",")
    preset = next((preset for preset in PRESETS if preset.name == base), None)
    return {
        "name": kv_format.name,
        "text": kv_format.name if preset is None or options else preset.text,
        "preset": None if preset is None else preset.name,
        "source": None if preset is None else preset.source,
        "engines": [] if preset is None else engine_rows(preset),
        "digest": kv_format.digest,
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "sinks": kv_format.sinks,
        "recent": kv_format.recent,
        "skip_layers": list(kv_format.skip_layers),
        "overrides": len(kv_format.overrides),
        "exact_dtype": kv_format.exact_dtype,
        "keys": side_details(kv_format.keys, head_dim, kv_heads),
        "values": side_details(kv_format.values, head_dim, kv_heads),
        "sqnr_db": _rates(kv_format, head_dim, kv_heads) if _has_torch() else None,
    }


def _has_torch() -> bool:
    return all(find_spec(name) is not None for name in ("torch", "jaxtyping"))


def _rates(kv_format: KVFormat, head_dim: int, kv_heads: int) -> dict[str, list[dict[str, Any]]]:
    """For each side, its SQNR and its neighbours', by stored bits."""
    from kvassay.formats.gaussian_rate import gaussian_sqnr_db  # loads torch

    known: dict[QuantSpec, float | None] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    for side, spec in (("keys", kv_format.keys), ("values", kv_format.values)):
        found[side] = []
        for each in _neighbourhood(spec, head_dim, kv_heads):
            if each not in known:
                known[each] = _measured(gaussian_sqnr_db, each, head_dim)
            found[side].append(
                {
                    "codec": side_name(each),
                    "stored_bits": stored_bits_per_value(each, kv_heads, head_dim),
                    "sqnr_db": known[each],
                    "is_this": each == spec,
                }
            )
    return found


def _measured(measure: Any, spec: QuantSpec, head_dim: int) -> float | None:
    """None where a codec, perhaps of another package, refuses Gaussian values: its neighbours still have theirs."""
    try:
        return measure(spec, head_dim)
    except KvassayError:
        return None


def _neighbourhood(spec: QuantSpec, head_dim: int, kv_heads: int) -> list[QuantSpec]:
    """The spec between the codecs of presets and of the method table that are nearest in stored bits."""
    try:
        own = stored_bits_per_value(spec, kv_heads, head_dim)
    except GeometryError:
        return []
    formats = [parse_format(preset.name) for preset in PRESETS]
    candidates = [side for each in formats for side in (each.keys, each.values)]
    candidates += [parse_side(example) for method in methods().values() for example in method.examples]
    bits: dict[QuantSpec, float] = {}
    for each in candidates:
        if each == spec or each.is_exact or each.needs_calibration or each.rotation is not None or each in bits:
            continue
        try:
            bits[each] = stored_bits_per_value(each, kv_heads, head_dim)
        except GeometryError:
            continue
    near = sorted(bits, key=lambda each: abs(bits[each] - own))
    below = [each for each in near if bits[each] <= own][:_NEIGHBOURS_EACH_WAY]
    above = [each for each in near if bits[each] > own][:_NEIGHBOURS_EACH_WAY]
    return sorted([*below, spec, *above], key=lambda each: bits.get(each, own))


def _print_details(value: dict[str, Any]) -> None:
    print(f"{value['name']}: {value['source'] or 'a format without a name of its own'}")
    print(f"  text     {value['text']}")
    print(f"  digest   {value['digest']}")
    for each in value["engines"]:
        note = f" ({each['note']})" if each["note"] else ""
        print(f"  engine   {each['engine']} calls {value['preset']} {each['name']}{note}: {each['conformance_text']}")
    exact = f"{value['sinks']} sinks and {value['recent']} recent tokens in {value['exact_dtype']}"
    print(f"  exact    {exact}, not counted below")
    if value["skip_layers"] or value["overrides"]:
        others = f"{len(value['skip_layers'])} skipped, {value['overrides']} overrides"
        print(f"  layers   {others}; below is what every other layer stores")
    rates = value["sqnr_db"] or {}
    if value["keys"] == value["values"]:
        _print_side("keys and values", value["keys"], value, rates.get("keys", []))
    else:
        for side in ("keys", "values"):
            _print_side(side, value[side], value, rates.get(side, []))
    if value["sqnr_db"] is None:
        print(f"\n{NEEDS_TORCH}")


def _print_side(title: str, side: dict[str, Any], shape: dict[str, Any], rates: list[dict[str, Any]]) -> None:
    print(f"\n{title}: {side['codec']}")
    print(f"  method   {side['method']} ({side['family']}): {side['summary']}")
    print(f"  source   {side['method_source']}")
    print(f"  scales   {side['scale_shared_by']}")
    if side["rotation"] is not None:
        block = side["rotation"].get("block_at_this_head_dim") or "that does not fit"
        print(
            f"  rotation Hadamard in blocks of {block} channels, seed {side['rotation']['seed']}; the query can take it"
        )
    if side["mean"]:
        print("  mean     a static mean of each channel is subtracted before, and added after")
    if side["error_bound"]:
        rotated = " (of the rotated values)" if side["rotation"] is not None else ""
        print(f"  error    {side['error_bound']}{rotated}")
    if side["refusal"]:
        print(f"  refused  {side['refusal']}")
        return
    nominal, stored = side["nominal_bits"], side["stored_bits"]
    shares = f"{stored / nominal:.4g} times the nominal, {stored / 16:.4g} of 16 bit"
    print(f"  bits     {nominal} nominal, {stored:.5g} really stored a value: {shares}{_of_heads(side, shape)}")
    tokens = side["tokens_per_block"]
    print(
        f"  block    {tokens} token{'s' if tokens > 1 else ''} of one KV head, head size {shape['head_dim']}: "
        f"{side['block_nbytes']:,} B; each array is stored apart: whole in a packed file, page by page in a cache"
    )
    rows = [
        [each["name"], each["offset"], each["nbytes"], each["dtype"], each["shape"],
         each["owner"] + (", once for all heads" if each["shared_by_heads"] else "")]
        for each in side["block"]
    ]  # fmt: skip
    rows += [
        [f"static {each['name']}", "-", each["nbytes"], each["dtype"], each["shape"], f"{each['owner']}, once a layer"]
        for each in side["static"]
    ]
    for line in table_lines(["array", "offset", "bytes", "dtype", "shape", "owner"], rows, right=(1, 2)):
        print(f"    {line}")
    _print_rates(rates)


def _of_heads(side: dict[str, Any], shape: dict[str, Any]) -> str:
    """How many heads the bits are of, where that makes a difference."""
    return f"; of {shape['kv_heads']} KV heads" if any(each["shared_by_heads"] for each in side["block"]) else ""


def _print_rates(rates: list[dict[str, Any]]) -> None:
    known = [each["sqnr_db"] for each in rates if each["sqnr_db"] is not None]
    if not known:
        return
    low, high = min(known), max(known)
    marks = [_spark(each["sqnr_db"], low, high) for each in rates]
    print(f"  SQNR     {''.join(marks)}  {low:.1f} to {high:.1f} dB on Gaussian data, by stored bits:")
    rows = [
        [f"{each['stored_bits']:.5g}", "-" if each["sqnr_db"] is None else f"{each['sqnr_db']:.1f}", mark,
         each["codec"] + ("  <- this one" if each["is_this"] else "")]
        for each, mark in zip(rates, marks, strict=True)
    ]  # fmt: skip
    for line in table_lines(["bits", "dB", "", "codec"], rows, right=(0, 1)):
        print(f"    {line}")


def _spark(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    share = 1.0 if high == low else (value - low) / (high - low)
    return _SPARK[round(share * (len(_SPARK) - 1))]
