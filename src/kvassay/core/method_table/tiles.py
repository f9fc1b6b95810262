"""Tiles that are scaled along both axes."""

from __future__ import annotations

from kvassay.core.geometry import Owner
from kvassay.core.methods import Family, Method, Option, Stream, Word, Working
from kvassay.core.spec import Granularity, OptionValue, QuantSpec
from kvassay.errors import GeometryError


def kvarn_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """A tile is a matrix of `rows` that are rounded by `columns` that are only scaled; a row of codes begins on a byte.

    `axis=channel`: rows are channels, columns tokens. `axis=token`: rows are tokens, columns channels.
    """
    assert spec.scale_dtype is not None, "the grammar gives a tile a scale dtype"
    tokens = spec.tokens_per_block
    by_channel = spec.option("axis") == "channel"
    rows, columns = (dim, tokens) if by_channel else (tokens, dim)
    if min(rows, columns) < 2:
        raise GeometryError(f"a tile of {tokens} tokens x {dim} channels has no spread along an axis; use tile128")
    if columns * spec.num_bits % 8:
        what, way_out = ("tile", "use tile128") if by_channel else ("head_dim", "use axis=channel or 4 bits")
        raise GeometryError(f"{what} {columns} at {spec.num_bits} bits does not fill whole bytes; {way_out}")
    scale = Stream("scales", Owner.SCALES, spec.scale_dtype, kv_heads, (rows,))
    return (
        Stream("codes", Owner.CODES, "uint8", kv_heads, (rows, columns * spec.num_bits // 8)),
        scale,
        scale._replace(name="minimums", owner=Owner.ZERO_POINTS),
        scale._replace(name="column_scales", block_shape=(columns,)),
    )


def _is_axis(value: OptionValue) -> bool:
    return value in ("channel", "token")


def _is_rounds(value: OptionValue) -> bool:
    return isinstance(value, int) and 0 <= value <= 64


def _working(spec: QuantSpec) -> Working:
    """Rows along channels are turned, which makes the float32 copy that 16-bit values need anyway."""
    return Working(16, 12.2) if spec.option("axis") == "token" else Working(20, 16, cast_nbytes=0)


KVARN = Method(
    name="kvarn",
    family=Family.TILED,
    summary="tile balanced along tokens and channels (log-Sinkhorn of standard deviations), then rounded row by row",
    source="KVarN (Muller et al. 2026, arXiv:2606.03458)",
    codec="kvassay.formats.kvarn:KvarnQuantizer",
    words=tuple(Word(f"kvarn-{bits}", bits, (Granularity.TILE,), symmetric=False) for bits in (8, 6, 5, 4, 3, 2)),
    options=(
        Option("axis", "channel", "channel (rounded channel by channel, for keys) or token (for values)", _is_axis),
        Option("rounds", 8, "rounds of balancing, 0 to 64", _is_rounds),
    ),
    examples=(
        "kvarn-8:tile16",
        "kvarn-5:tile32/had",
        "kvarn-4:tile32",
        "kvarn-4:tile32/had",
        "kvarn-3:tile16/axis=token",
        "kvarn-2:tile32/axis=token",
        "kvarn-2:tile32/scale=f32/rounds=2",
        "kvarn-2:tile32/had/axis=token",
    ),
    layout=kvarn_layout,
    working=_working,
    error_bound="|x − x̂| <= column scale · (scale / 2 + (L · scale + |minimum|) · u), all as stored; L = 2^bits − 1; "
    "u = 2^-11 for float16, 2^-8 for bfloat16, 2^-24 for float32",
)

ROWS = (KVARN,)
