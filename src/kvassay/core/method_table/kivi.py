"""Per-channel keys of mixed width."""

from __future__ import annotations

from kvassay.core.geometry import Owner
from kvassay.core.layout import code_stream, scale_stream
from kvassay.core.methods import Family, Method, Option, Stream, Word, Working
from kvassay.core.spec import Granularity, OptionValue, QuantSpec
from kvassay.errors import GeometryError


def kivi_mix_layout(spec: QuantSpec, kv_heads: int, dim: int) -> tuple[Stream, ...]:
    """Codes of all channels, the further bits of the promoted ones, which channels those are, scales and minimums."""
    codes = code_stream(spec, kv_heads, dim)
    promoted = int(spec.option("promoted"))
    if promoted > dim:
        raise GeometryError(f"head_dim {dim} has fewer than {promoted} channels; use promoted={dim // 4 * 4}")
    more = codes._replace(name="promoted_codes", block_shape=(spec.tokens_per_block, promoted * spec.num_bits // 8))
    index = "uint8" if dim <= 256 else "uint16"
    which = Stream("promoted_channels", Owner.CODES, index, kv_heads, (promoted,))
    scales = scale_stream(spec, kv_heads, dim)
    return (codes, more, which, scales, scales._replace(name="minimums", owner=Owner.ZERO_POINTS))


def _is_promoted(value: OptionValue) -> bool:
    return isinstance(value, int) and 4 <= value <= 4096 and value % 4 == 0


KIVI_MIX = Method(
    name="kivi-mix",
    family=Family.KIVI,
    summary="2 bit per channel, the channels of largest range in each block of tokens at 4 bit",
    source="KIVI (Liu et al. 2024, arXiv:2402.02750, section 3); channel boost as in Kitty (Xia et al. 2025, "
    "arXiv:2511.18643)",
    codec="kvassay.formats.kivi_mix:KiviMixQuantizer",
    words=(Word("kivi-mix", 2, (Granularity.CHANNEL,), symmetric=False),),
    options=(Option("promoted", 16, "channels of a head at 4 bit, a multiple of 4 from 4 to 4096", _is_promoted),),
    examples=("kivi-mix:channel32", "kivi-mix:channel16/promoted=4", "kivi-mix:channel32/scale=f32/promoted=32"),
    # A rotation spreads the range over all channels, and then none stands out.
    may_rotate=False,
    layout=kivi_mix_layout,
    working=Working(12, 12.3),
    error_bound="|x − x̂| <= scale / 2 + (L · scale + |minimum|) · u, all as stored; L = 15 for promoted channels, "
    "else 3; u = 2^-11 for float16, 2^-8 for bfloat16, 2^-24 for float32",
)

ROWS = (KIVI_MIX,)
