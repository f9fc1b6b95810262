"""Which layers compiled kernels read and write, told from a format alone. No torch.

What a codec's numbers mean to a kernel is the codec's own affair (`formats.tile_reading`); whether there is such a
meaning stands in its method's row, so that bytes can be predicted without a tensor.
"""

from __future__ import annotations

from kvassay.core.geometry import LayerGeometry
from kvassay.core.kv_format import KVFormat, SidePlan, head_groups
from kvassay.core.methods import InPlace, method_of
from kvassay.core.paging import KEY_BLOCK_TOKENS, PageLayout, Region, page_layout
from kvassay.core.spec import STATIC, Granularity, QuantSpec

MAX_DIM = 1024
MAX_GROUPS = 32
MAX_PAGE_TOKENS = 256
MAX_QUERIES = 64
"""Queries that share a KV head in one call: query heads a KV head times tokens."""
SCALE_DTYPES = ("float16", "float32", "bfloat16")
_DIM_STEP = 16


def in_place(spec: QuantSpec) -> InPlace:
    """What kernels multiply a query with, rotation and mean included."""
    declared = method_of(spec).in_place
    own = declared if isinstance(declared, InPlace) else declared(spec)
    # A mean that is added back is no change of basis.
    if own is InPlace.NO or spec.mean:
        return InPlace.NO
    return own if spec.rotation is None else InPlace.BASIS


def shape_obstacle(plan: SidePlan, layout: PageLayout, dim: int) -> str | None:
    """Why kernels cannot read pages of such a shape, whatever their codes mean; None where they can."""
    spec = plan.spec
    if dim % _DIM_STEP or dim > MAX_DIM:
        return f"head_dim {dim} is not a multiple of {_DIM_STEP} up to {MAX_DIM}"
    if layout.tokens > MAX_PAGE_TOKENS:
        return f"a page of {layout.tokens} tokens is longer than {MAX_PAGE_TOKENS}"
    if spec.is_exact:
        return None
    codes = region_named(layout, "codes")
    if layout.tokens % KEY_BLOCK_TOKENS or codes is None or codes.order is None:
        return f"pages of {layout.tokens} tokens are not whole blocks of {KEY_BLOCK_TOKENS}"
    if spec.granularity is Granularity.CHANNEL and plan.side == "values":
        return "values with scales by channel must be decoded first"
    if spec.granularity is Granularity.CHANNEL and layout.block_tokens % KEY_BLOCK_TOKENS:
        return f"blocks of {layout.block_tokens} tokens are not whole blocks of {KEY_BLOCK_TOKENS}"
    if spec.granularity in (Granularity.GROUP, Granularity.TOKEN_HEAD):
        group = spec.group_size or dim
        if group % _DIM_STEP or dim // group > MAX_GROUPS:
            return f"groups of {group} channels are not whole blocks of {_DIM_STEP}, at most {MAX_GROUPS} a head"
    elif spec.granularity not in (Granularity.NONE, Granularity.TENSOR, Granularity.HEAD, Granularity.CHANNEL):
        return f"scales by {spec.granularity.value} must be decoded first"
    if spec.is_static and spec.has_minimum:
        return "a static minimum must be decoded first"
    if spec.scale_dtype is not None and spec.scale_dtype not in SCALE_DTYPES and spec.granularity not in STATIC:
        return f"scales of {spec.scale_dtype} must be decoded first"
    return None


def query_obstacle(query_heads: int, kv_heads: int) -> str | None:
    """Why kernels cannot serve even a single token's queries; None where they can."""
    sharing = query_heads // kv_heads
    return None if sharing <= MAX_QUERIES else f"{sharing} query heads share a KV head; kernels take {MAX_QUERIES}"


def reads_layer(kv_format: KVFormat, index: int, layer: LayerGeometry, query_heads: int) -> bool:
    """Whether a decode step reads the codes of a layer in place, where the compiled module is there."""
    if query_obstacle(query_heads, layer.kv_heads) is not None:
        return False
    for group in head_groups(kv_format, index, layer):
        for plan, dim in ((group.keys, layer.head_dim), (group.values, layer.value_dim)):
            if plan.side == "keys" and kv_format.transforms_keys and not plan.spec.is_exact:
                return False
            layout = page_layout(plan.spec, group.num_heads, dim, plan.side)
            if in_place(plan.spec) is InPlace.NO or shape_obstacle(plan, layout, dim) is not None:
                return False
    return True


def encodes(spec: QuantSpec, dim: int) -> bool:
    """Whether the compiled module makes the codes of a spec, where it is there."""
    if spec.is_exact:
        return True
    served = (
        (spec.method == "int" and spec.num_bits in (2, 4, 8))
        or (spec.method == "nf4" and spec.symmetric and not spec.option("outliers"))
        or (spec.method == "float8" and spec.code_dtype == "float8_e4m3fn")
    )
    group = dim if spec.group_size is None or spec.granularity is not Granularity.GROUP else spec.group_size
    return (
        served
        and spec.granularity in (Granularity.GROUP, Granularity.TOKEN_HEAD, Granularity.CHANNEL)
        and spec.scale_dtype in SCALE_DTYPES
        and not spec.mean
        and dim % group == 0
        and group * spec.num_bits % 8 == 0
        and (spec.tokens_per_block == 1 or dim % _DIM_STEP == 0)
    )


def region_named(layout: PageLayout, name: str) -> Region | None:
    return next((region for region in layout.regions if region.stream.name == name), None)
