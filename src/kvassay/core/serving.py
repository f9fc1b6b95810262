"""Can a format serve a model? Known from the format and the cache's shape, before any tensor exists."""

from __future__ import annotations

from kvassay.core.geometry import CacheGeometry
from kvassay.core.kv_format import KVFormat, head_groups
from kvassay.core.layout import streams
from kvassay.errors import FormatError


def check_serves(kv_format: KVFormat, geometry: CacheGeometry) -> None:
    """Raise before the first token where a format cannot serve a model: head size, layer and head numbers."""
    largest = kv_format.largest_layer
    if largest is not None and largest >= geometry.num_layers:
        raise FormatError(
            f"{kv_format.name} names layer {largest}, the model has layers 0 to {geometry.num_layers - 1}"
        )
    for override in kv_format.overrides:
        for layer in override.layers:
            if override.heads is not None and override.heads[-1] >= geometry.layers[layer].kv_heads:
                raise FormatError(
                    f"{kv_format.name} names KV head {override.heads[-1]} of layer {layer}, which has heads 0 to "
                    f"{geometry.layers[layer].kv_heads - 1}"
                )
    for index, layer in enumerate(geometry.layers):
        for group in head_groups(kv_format, index, layer):
            streams(group.keys.spec, group.num_heads, layer.head_dim)
            streams(group.values.spec, group.num_heads, layer.value_dim)
