"""Why compiled kernels cannot read what a layer stores, found out before any token is there."""

from __future__ import annotations

from collections.abc import Iterable

from kvassay.core.geometry import LayerGeometry
from kvassay.core.kernel_reach import query_obstacle
from kvassay.core.kv_format import HeadGroup
from kvassay.core.paging import page_layout
from kvassay.kernels.native import native_state
from kvassay.kernels.tile_formats import obstacle


def layer_obstacle(
    groups: Iterable[HeadGroup],
    geometry: LayerGeometry,
    *,
    query_heads: int,
    is_offloaded: bool,
    transforms_keys: bool,
) -> str | None:
    """A sentence, or None where kernels can read every side for so many query heads."""
    if missing := native_state().missing:
        return missing
    if is_offloaded:
        return "pages are offloaded"
    if found := query_obstacle(query_heads, geometry.kv_heads):
        return found
    for group in groups:
        for plan, dim in ((group.keys, geometry.head_dim), (group.values, geometry.value_dim)):
            if transforms_keys and plan.side == "keys" and not plan.spec.is_exact:
                return "keys are stored in another form (keybias, rope), which is undone token by token"
            if found := obstacle(plan, page_layout(plan.spec, group.num_heads, dim, plan.side), dim):
                return f"{plan.side}: {found}"
    return None
